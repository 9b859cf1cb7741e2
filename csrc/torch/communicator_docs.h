// The docstrings of rocenante.Communicator.
#pragma once

namespace rocenante::docs {

inline constexpr const char* kCommunicator =
    R"(Communicator(rank, world_size, store, timeout=300.0, name='default')

One rank's end of a group of ranks, for collectives on numpy arrays, torch tensors and any other array
with __dlpack__ or __cuda_array_interface__ (cupy). CUDA arrays are copied to CPU memory and back, in
order with torch's current stream, unless all_reduce is given a stream. Blocks until all ranks have made
theirs.

rank: this process's rank, 0 <= rank < world_size (at most 64).
store: a torch.distributed Store that all ranks share, such as TCPStore or FileStore.
timeout: what an operation may take, in seconds or as a timedelta, unless a call gives its own.
name: appears in errors; communicators on one store that exist at once need different names.

Dtypes: bool, (u)int8 to (u)int64, float16, bfloat16, float32, float64, complex64, complex128,
float8_e4m3fn, float8_e5m2. Any shape and strides, zero elements included.

All ranks must call the same operations in the same order, with the same sizes, dtypes and operators.
Calls block. They may come from any thread, but the order must be the same on all ranks.

Raises (all derive from rocenante.Error): UsageError if this call is wrong by itself; MismatchError if
the ranks' calls differ; TimeoutError; PeerLostError if another rank died; AbortedError after abort() or an
earlier failure; ConfigError for a ROCENANTE_* variable; OSFailure. After anything but a UsageError the
communicator can no longer be used.)";

inline constexpr const char* kAllReduce =
    R"(all_reduce($self, array, op='sum', *, out=None, factor=None, timeout=None, stream=None)
--

Reduces the ranks' arrays element by element; every rank gets the same bits.

op: sum, avg, product, min, max, band, bor, bxor, or premul_sum, which multiplies this rank's array by
factor first. avg needs floats, band, bor and bxor integers or bools, complex numbers only sum.
out: array of the same dtype and size for the result; None: in place.
stream: for contiguous arrays in GPU memory (torch, cupy): queues one kernel on this torch.cuda.Stream,
cupy.cuda.Stream or cudaStream_t number and returns at once; the result is there when the stream has come
so far. Fit for capture into a CUDA graph after a first call outside of one. The memory must stay until
then; torch's allocator is told of a torch stream. A kernel that fails (timeout, lost peer, another call)
leaves out undefined and shows in `failure` and in the next call. Never run on a GPU yet.
Returns out, or array.)";

inline constexpr const char* kFailure =
    "Why the communicator can no longer be used; None while it can. Kernels on a stream tell here.";

inline constexpr const char* kAllGather =
    R"(all_gather($self, array, *, out=None, timeout=None)
--

Returns all ranks' arrays, stacked in rank order: shape (world_size, *array.shape), array's dtype; in out,
if given.)";

inline constexpr const char* kReduceScatter =
    R"(reduce_scatter($self, array, op='sum', *, out=None, factor=None, timeout=None)
--

Reduces the ranks' arrays of shape (world_size * k, ...) and returns this rank's part of the result, of
shape (k, ...); in out, if given. op and factor as in all_reduce.)";

inline constexpr const char* kAllToAll =
    R"(all_to_all($self, array, *, out=None, timeout=None)
--

Of an array of shape (world_size * k, ...) the r-th k rows go to rank r. Returns an array of the same shape
whose r-th k rows come from rank r; in out, if given.)";

inline constexpr const char* kBroadcast =
    R"(broadcast($self, array, root=0, *, timeout=None)
--

Overwrites array with the root rank's, of the same dtype and size. Returns array.)";

inline constexpr const char* kReduce =
    R"(reduce($self, array, root=0, op='sum', *, factor=None, timeout=None)
--

As all_reduce, but only the root rank's array is overwritten with the result. Returns array.)";

inline constexpr const char* kGather =
    R"(gather($self, array, root=0, *, out=None, timeout=None)
--

As all_gather, but only the root rank gets the result; others get None and may not give out.)";

inline constexpr const char* kScatter =
    R"(scatter($self, array=None, root=0, *, out=None, timeout=None)
--

The root rank's array of shape (world_size * k, ...) is dealt out: every rank gets k rows. The root returns
an array of shape (k, ...), or out. The other ranks give out alone, an array of that size and dtype.)";

inline constexpr const char* kBarrier =
    R"(barrier($self, *, timeout=None)
--

Returns once all ranks have called it.)";

inline constexpr const char* kSend =
    R"(send($self, array, destination, tag=0, *, timeout=None)
--

Sends array to rank destination; returns when array may be changed again. It matches a recv of the same
tag, dtype and size there, in order. Independent of the order of collectives.)";

inline constexpr const char* kRecv =
    R"(recv($self, array, source=None, tag=0, *, timeout=None)
--

Receives into array from rank source, or from any. Returns the rank it came from.)";

inline constexpr const char* kAbort =
    R"(abort($self, reason)
--

Ends what this rank is waiting for in any thread with AbortedError, and all later calls; the other ranks
get PeerLostError with the reason.)";

inline constexpr const char* kClose =
    R"(close($self)
--

Leaves the group; later calls raise AbortedError. Idempotent; also done when the object goes.)";

}  // namespace rocenante::docs
