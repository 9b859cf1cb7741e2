// Collectives with a root: broadcast, reduce, gather, scatter. Ranks that need nothing from a peer
// don't wait for it; invariant I1 (exchange.h) keeps them from running ahead too far.

#include "collective/communicator.h"
#include "collective/pieces.h"
#include "collective/reduce.h"
#include "exchange/exchange.h"
#include "transport/transport.h"

namespace rocenante {

namespace {
// On one host the others copy one piece out while the root copies the next one in.
constexpr size_t kOverlapped = 64 << 10;
}  // namespace

void Communicator::broadcast(void* data, size_t bytes, DType dtype, int root,
                             Milliseconds timeout) {
  begin(record(Collective::broadcast, bytes, dtype, root), timeout);
  auto* p = static_cast<char*>(data);
  // Both the same on all ranks. Ranks that share processors would only switch more often.
  const bool overlaps = !transport_->pushes() && transport_->has_processor_each();
  const size_t piece = overlaps ? std::min(config_.slot_bytes, kOverlapped) : config_.slot_bytes;
  Pieces(bytes, piece).for_each([&](size_t offset, size_t n) {
    char* staged = exchange_->open(n);
    if (rank_ == root) copy_bytes(staged, p + offset, n);
    exchange_->publish(rank_ == root ? Parts::same(n) : Parts::none());
    if (rank_ != root) copy_bytes(p + offset, exchange_->await(root), n);
  });
}

void Communicator::reduce(const void* in, void* out, size_t count, DType dtype, Reduction reduction,
                          int root, Milliseconds timeout) {
  check_reduction(dtype, reduction.op);
  const size_t bytes = count * size_of(dtype);
  CallRecord call = record(Collective::reduce, bytes, dtype, root);
  call.op = reduction.op;
  call.reduces = true;
  begin(call, timeout);
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  const bool scaled = reduction.op == ReduceOp::premul_sum;
  Pieces(bytes, config_.slot_bytes).for_each([&](size_t offset, size_t n) {
    char* staged = exchange_->open(n);
    if (scaled)
      premultiply(dtype, reduction.factor, staged, from + offset, n / size_of(dtype));
    else if (rank_ != root)
      copy_bytes(staged, from + offset, n);
    exchange_->publish(rank_ == root ? Parts::none() : Parts::only(root, n));
    if (rank_ != root) return;
    exchange_->await_all();
    const void* parts[kMaxRanks];
    for (int r = 0; r < size_; ++r)
      parts[r] = r != rank_ ? exchange_->await(r) : scaled ? staged : from + offset;
    rocenante::reduce(dtype, reduction.op, to + offset, parts, size_, n / size_of(dtype));
  });
}

void Communicator::gather(const void* in, void* const* out, size_t bytes, DType dtype, int root,
                          Milliseconds timeout) {
  begin(record(Collective::gather, bytes, dtype, root), timeout);
  const auto* from = static_cast<const char*>(in);
  Pieces(bytes, config_.slot_bytes).for_each([&](size_t offset, size_t n) {
    char* staged = exchange_->open(n);
    if (rank_ != root) copy_bytes(staged, from + offset, n);
    exchange_->publish(rank_ == root ? Parts::none() : Parts::only(root, n));
    if (rank_ != root) return;
    exchange_->await_all();
    for (int r = 0; r < size_; ++r)
      copy_bytes(static_cast<char*>(out[r]) + offset,
                 r == rank_ ? from + offset : exchange_->await(r), n);
  });
}

void Communicator::scatter(const void* const* in, void* out, size_t bytes, DType dtype, int root,
                           Milliseconds timeout) {
  begin(record(Collective::scatter, bytes, dtype, root), timeout);
  auto* to = static_cast<char*>(out);
  const size_t lane = lane_bytes(config_.slot_bytes, size_);
  Pieces(bytes, lane).for_each([&](size_t offset, size_t n) {
    char* staged = exchange_->open(lane * static_cast<size_t>(size_));
    if (rank_ == root)
      for (int r = 0; r < size_; ++r)
        if (r != rank_)
          copy_bytes(staged + static_cast<size_t>(r) * lane,
                     static_cast<const char*>(in[r]) + offset, n);
    exchange_->publish(rank_ == root ? Parts::lanes(lane, n) : Parts::none());
    if (rank_ == root)
      copy_bytes(to + offset, static_cast<const char*>(in[rank_]) + offset, n);
    else
      copy_bytes(to + offset, exchange_->await(root) + static_cast<size_t>(rank_) * lane, n);
  });
}

}  // namespace rocenante
