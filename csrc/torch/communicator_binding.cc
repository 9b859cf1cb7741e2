#include "torch/communicator_binding.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <new>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "torch/arguments.h"
#include "torch/array.h"
#include "torch/communicator_docs.h"
#include "torch/communicator_object.h"
#include "torch/gpu_arrays.h"

namespace rocenante {

namespace {

PyObject* all_reduce(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<6> signature{
      "all_reduce", 2, 1, {"array", "op", "out", "factor", "timeout", "stream"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, op, out, factor, timeout, stream] = signature.read({values, count, names});
    const Reduction reduction = to_reduction(op, factor);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    if (stream) return all_reduce_on_stream(own, array, out, reduction, limit, stream);
    const bool in_place = !out || out == array;
    Array in(array, in_place ? Use::update : Use::read, "array");
    const DType dtype = reducible(in, reduction);
    if (in_place) {
      run(own, [&](Communicator& c) {
        char* data = in.dense();
        c.all_reduce(data, data, in.count(), dtype, reduction, limit);
        in.unpack();
      });
      return Py_NewRef(array);
    }
    Array result(out, Use::write, "out");
    check_like(result, in, in.count());
    run(own, [&](Communicator& c) {
      in.separate(result);
      c.all_reduce(in.dense(), result.dense(), in.count(), dtype, reduction, limit);
      result.unpack();
    });
    return Py_NewRef(out);
  });
}

PyObject* all_gather(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<3> signature{"all_gather", 1, 1, {"array", "out", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, out, timeout] = signature.read({values, count, names});
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const int size = engine_of(own).communicator().size();
    Array in(array, Use::read, "array");
    Result result(out, in, stacked(in.shape(), size), in.count() * size);
    run(own, [&](Communicator& c) {
      const Pointers parts = parts_of(result.array().dense(), in.bytes(), size);
      if (in.dense() != parts[c.rank()]) in.separate(result.array());
      c.all_gather(in.dense(), parts.data(), in.bytes(), in.dtype(), limit);
      result.array().unpack();
    });
    return result.release();
  });
}

PyObject* reduce_scatter(PyObject* self, PyObject* const* values, Py_ssize_t count,
                         PyObject* names) {
  static constexpr Signature<5> signature{
      "reduce_scatter", 2, 1, {"array", "op", "out", "factor", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, op, out, factor, timeout] = signature.read({values, count, names});
    const Reduction reduction = to_reduction(op, factor);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const int size = engine_of(own).communicator().size();
    Array in(array, Use::read, "array");
    const DType dtype = reducible(in, reduction);
    Result result(out, in, share_of(in.shape(), size), in.count() / size);
    run(own, [&](Communicator& c) {
      const size_t part = in.bytes() / size;
      if (result.array().dense() != in.dense() + part * c.rank()) in.separate(result.array());
      c.reduce_scatter(const_parts_of(in.dense(), part, size).data(), result.array().dense(),
                       in.count() / size, dtype, reduction, limit);
      result.array().unpack();
    });
    return result.release();
  });
}

PyObject* all_to_all(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<3> signature{"all_to_all", 1, 1, {"array", "out", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, out, timeout] = signature.read({values, count, names});
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const int size = engine_of(own).communicator().size();
    Array in(array, Use::read, "array");
    share_of(in.shape(), size);
    Result result(out, in, in.shape(), in.count());
    run(own, [&](Communicator& c) {
      in.separate(result.array());
      const size_t part = in.bytes() / size;
      c.all_to_all(const_parts_of(in.dense(), part, size).data(),
                   parts_of(result.array().dense(), part, size).data(), part, in.dtype(), limit);
      result.array().unpack();
    });
    return result.release();
  });
}

PyObject* broadcast(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<3> signature{"broadcast", 2, 1, {"array", "root", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, root_object, timeout] = signature.read({values, count, names});
    const int root = to_int(root_object, 0);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const bool reads = engine_of(own).communicator().rank() == root;
    Array data(array, reads ? Use::read : Use::write, "array");
    run(own, [&](Communicator& c) {
      c.broadcast(data.dense(), data.bytes(), data.dtype(), root, limit);
      if (!reads) data.unpack();
    });
    return Py_NewRef(array);
  });
}

PyObject* reduce(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<5> signature{
      "reduce", 3, 1, {"array", "root", "op", "factor", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, root_object, op, factor, timeout] = signature.read({values, count, names});
    const int root = to_int(root_object, 0);
    const Reduction reduction = to_reduction(op, factor);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const bool writes = engine_of(own).communicator().rank() == root;
    Array data(array, writes ? Use::update : Use::read, "array");
    const DType dtype = reducible(data, reduction);
    run(own, [&](Communicator& c) {
      char* bytes = data.dense();
      c.reduce(bytes, writes ? bytes : nullptr, data.count(), dtype, reduction, root, limit);
      if (writes) data.unpack();
    });
    return Py_NewRef(array);
  });
}

PyObject* gather(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<4> signature{"gather", 2, 1, {"array", "root", "out", "timeout"}};
  return guarded([&]() -> PyObject* {
    Object& own = self_of(self);
    const auto [array, root_object, out, timeout] = signature.read({values, count, names});
    const int root = to_int(root_object, 0);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const int size = engine_of(own).communicator().size();
    Array in(array, Use::read, "array");
    if (own.engine->communicator().rank() != root) {
      if (out) throw Error(ErrorKind::usage, "out= is for the root rank only");
      run(own, [&](Communicator& c) {
        c.gather(in.dense(), nullptr, in.bytes(), in.dtype(), root, limit);
      });
      return none();
    }
    Result result(out, in, stacked(in.shape(), size), in.count() * size);
    run(own, [&](Communicator& c) {
      const Pointers parts = parts_of(result.array().dense(), in.bytes(), size);
      if (in.dense() != parts[root]) in.separate(result.array());
      c.gather(in.dense(), parts.data(), in.bytes(), in.dtype(), root, limit);
      result.array().unpack();
    });
    return result.release();
  });
}

PyObject* scatter(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<4> signature{"scatter", 2, 0, {"array", "root", "out", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, root_object, out, timeout] = signature.read({values, count, names});
    const int root = to_int(root_object, 0);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    const int size = engine_of(own).communicator().size();
    if (own.engine->communicator().rank() != root) {
      if (array || !out)
        throw Error(ErrorKind::usage, "ranks other than the root give no array, but out=");
      Array result(out, Use::write, "out");
      run(own, [&](Communicator& c) {
        c.scatter(nullptr, result.dense(), result.bytes(), result.dtype(), root, limit);
        result.unpack();
      });
      return Py_NewRef(out);
    }
    if (!array) throw Error(ErrorKind::usage, "the root rank must give an array");
    Array in(array, Use::read, "array");
    Result result(out, in, share_of(in.shape(), size), in.count() / size);
    run(own, [&](Communicator& c) {
      const size_t part = in.bytes() / size;
      if (result.array().dense() != in.dense() + part * root) in.separate(result.array());
      c.scatter(const_parts_of(in.dense(), part, size).data(), result.array().dense(), part,
                in.dtype(), root, limit);
      result.array().unpack();
    });
    return result.release();
  });
}

PyObject* barrier(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<1> signature{"barrier", 0, 0, {"timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [timeout] = signature.read({values, count, names});
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    run(own, [&](Communicator& c) { c.barrier(limit); });
    return none();
  });
}

PyObject* send(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<4> signature{"send", 3, 2, {"array", "destination", "tag", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, destination, tag, timeout] = signature.read({values, count, names});
    const int to = to_int(destination, 0), number = to_int(tag, 0);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    Engine& engine = engine_of(own);
    Array data(array, Use::read, "array");
    release_gil([&] {
      engine.communicator()
          .point_to_point()
          .send(data.dense(), data.bytes(), data.dtype(), to, number, limit)
          ->wait(limit + limit);  // its own time ends it first
    });
    return none();
  });
}

PyObject* recv(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<4> signature{"recv", 3, 1, {"array", "source", "tag", "timeout"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [array, source, tag, timeout] = signature.read({values, count, names});
    const int from = to_int(source, kAnySource), number = to_int(tag, 0);
    const Milliseconds limit = to_timeout(timeout, own.timeout);
    Engine& engine = engine_of(own);
    Array data(array, Use::write, "array");
    int sender = from;
    release_gil([&] {
      auto transfer = engine.communicator().point_to_point().recv(
          data.dense(), data.bytes(), data.dtype(), from, number, limit);
      transfer->wait(limit + limit);  // its own time ends it first
      data.unpack();
      sender = transfer->source();
    });
    return PyLong_FromLong(sender);
  });
}

PyObject* abort_group(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  static constexpr Signature<1> signature{"abort", 1, 1, {"reason"}};
  return guarded([&] {
    Object& own = self_of(self);
    const auto [reason] = signature.read({values, count, names});
    const char* text = PyUnicode_AsUTF8(reason);
    if (!text) throw PythonError();
    Engine& engine = engine_of(own);
    release_gil([&, why = std::string(text)] { engine.abort(why); });
    return none();
  });
}

PyObject* close_group(PyObject* self, PyObject*) {
  return guarded([&] {
    Object& own = self_of(self);
    if (own.engine) without_gil([&] { own.engine->shutdown(Milliseconds(0)); });
    return none();
  });
}

PyObject* get_rank(PyObject* self, void*) {
  return guarded([&] { return PyLong_FromLong(engine_of(self_of(self)).communicator().rank()); });
}

PyObject* get_world_size(PyObject* self, void*) {
  return guarded([&] { return PyLong_FromLong(engine_of(self_of(self)).communicator().size()); });
}

PyObject* get_failure(PyObject* self, void*) {
  return guarded([&] { return failure_of(self_of(self)); });
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  new (&self_of(object).engine) std::shared_ptr<Engine>();
  self_of(object).timeout = Milliseconds(0);
  return object;
}

int initialize(PyObject* self, PyObject* arguments, PyObject* named) {
  PyObject* done = guarded([&] {
    static const char* names[] = {"rank", "world_size", "store", "timeout", "name", nullptr};
    int rank = 0, size = 0;
    PyObject *store_object = nullptr, *timeout = nullptr;
    const char* name = "default";
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "iiO|Os:Communicator",
                                     const_cast<char**>(names), &rank, &size, &store_object,
                                     &timeout, &name))
      throw PythonError();
    constexpr Milliseconds kDefault = std::chrono::minutes(5);
    const Milliseconds limit = to_timeout(timeout == Py_None ? nullptr : timeout, kDefault);
    c10::intrusive_ptr<c10d::Store> store;
    try {
      store = pybind11::cast<c10::intrusive_ptr<c10d::Store>>(pybind11::handle(store_object));
    } catch (const pybind11::cast_error&) {
      throw Error(
          ErrorKind::usage,
          std::string("store must be a torch.distributed Store (such as TCPStore), not a ") +
              Py_TYPE(store_object)->tp_name);
    }
    Object& own = self_of(self);
    if (own.engine) throw Error(ErrorKind::usage, "this Communicator was initialised before");
    own.timeout = limit;
    release_gil([&] { own.engine = Engine::create(std::move(store), rank, size, limit, name); });
    return none();
  });
  Py_XDECREF(done);
  return done ? 0 : -1;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  release(self_of(self).engine);
  self_of(self).engine.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);  // a heap type's instances hold it
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

PyMethodDef fast(const char* name, Fast function, const char* documentation) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, documentation};
}

PyMethodDef methods[] = {
    fast("all_reduce", all_reduce, docs::kAllReduce),
    fast("all_gather", all_gather, docs::kAllGather),
    fast("reduce_scatter", reduce_scatter, docs::kReduceScatter),
    fast("all_to_all", all_to_all, docs::kAllToAll),
    fast("broadcast", broadcast, docs::kBroadcast),
    fast("reduce", reduce, docs::kReduce),
    fast("gather", gather, docs::kGather),
    fast("scatter", scatter, docs::kScatter),
    fast("barrier", barrier, docs::kBarrier),
    fast("send", send, docs::kSend),
    fast("recv", recv, docs::kRecv),
    fast("abort", abort_group, docs::kAbort),
    {"close", close_group, METH_NOARGS, docs::kClose},
    {},
};

PyGetSetDef properties[] = {
    {"rank", get_rank, nullptr, "This process's rank, from 0.", nullptr},
    {"world_size", get_world_size, nullptr, "The number of ranks.", nullptr},
    {"failure", get_failure, nullptr, docs::kFailure, nullptr},
    {},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(docs::kCommunicator)},
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_init, reinterpret_cast<void*>(initialize)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, nullptr},
};

PyType_Spec spec = {"rocenante._C.Communicator", sizeof(Object), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

bool add_communicator_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) return false;
  const bool added = PyModule_AddObjectRef(module, "Communicator", type) == 0;
  Py_DECREF(type);
  return added;
}

}  // namespace rocenante
