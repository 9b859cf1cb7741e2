// all_reduce in one shot (every rank reduces everything) or two (every rank reduces its share, then
// gathers the others'). Both reduce in rank order with one rounding, so their bits are equal (I4).
#include <cstring>

#include "collective/communicator.h"
#include "collective/pieces.h"
#include "collective/reduce.h"
#include "collective/selector.h"
#include "exchange/exchange.h"
#include "transport/transport.h"

namespace rocenante {

namespace {

struct AllReduce {
  Exchange& exchange;
  int rank, size;
  DType dtype;
  Reduction reduction;

  bool scaled() const { return reduction.op == ReduceOp::premul_sum; }

  // This rank's contribution as the peers see it: for premul_sum scaled and rounded.
  void stage(char* to, const char* from, size_t bytes) const {
    if (bytes == 0) return;
    if (scaled())
      premultiply(dtype, reduction.factor, to, from, bytes / size_of(dtype));
    else
      std::memcpy(to, from, bytes);
  }

  void one_shot(const char* in, char* out, size_t bytes) const {
    char* staged = exchange.open(bytes);
    stage(staged, in, bytes);
    exchange.publish(Parts::same(bytes));
    exchange.await_all();
    const void* parts[kMaxRanks];
    // This rank's own bytes come from the caller's buffer, which is in its cache, unless they were
    // scaled.
    for (int r = 0; r < size; ++r)
      parts[r] = r == rank ? (scaled() ? staged : in) : exchange.await(r);
    reduce(dtype, reduction.op, out, parts, size, bytes / size_of(dtype));
  }

  void two_shot(const char* in, char* out, size_t bytes) const {
    const Shares shares(bytes, size);
    const size_t mine = shares.begin(rank);
    char* staged = exchange.open(bytes);
    for (int r = 0; r < size; ++r)
      if (r != rank || scaled())
        stage(staged + shares.begin(r), in + shares.begin(r), shares.length(r));
    exchange.publish(Parts::lanes(shares.stride(), shares.stride(), bytes));
    exchange.await_all();
    const void* parts[kMaxRanks];
    for (int r = 0; r < size; ++r)
      parts[r] = (r == rank ? (scaled() ? staged : in) : exchange.await(r)) + mine;
    // The step's slots stay readable until this rank publishes the step after next.
    char* reduced = exchange.open(bytes);
    reduce(dtype, reduction.op, reduced + mine, parts, size, shares.length(rank) / size_of(dtype));
    exchange.publish(Parts::range(mine, shares.length(rank)));
    for (int k = 0; k < size; ++k) {
      const int r = (rank + k) % size;
      const char* from = r == rank ? reduced : exchange.await(r);
      if (shares.length(r) > 0)
        std::memcpy(out + shares.begin(r), from + shares.begin(r), shares.length(r));
    }
    exchange.await_all();
  }
};

}  // namespace

void Communicator::all_reduce(const void* in, void* out, size_t count, DType dtype,
                              Reduction reduction, Milliseconds timeout) {
  check_reduction(dtype, reduction.op);
  const size_t bytes = count * size_of(dtype);
  CallRecord call = record(Collective::all_reduce, bytes, dtype);
  call.algorithm = select_all_reduce(bytes, size_, transport_->pushes(), config_);
  call.op = reduction.op;
  call.reduces = true;
  begin(call, timeout);
  const AllReduce op{*exchange_, rank_, size_, dtype, reduction};
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  if (call.algorithm == Algorithm::one_shot)
    op.one_shot(from, to, bytes);
  else
    Pieces(bytes, config_.slot_bytes).for_each([&](size_t at, size_t n) {
      op.two_shot(from + at, to + at, n);
    });
}

}  // namespace rocenante
