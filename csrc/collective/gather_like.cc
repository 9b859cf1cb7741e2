// Collectives in which every rank waits for every other and bytes are only moved or reduced once:
// all_gather, reduce_scatter, all_to_all, barrier.
#include <cstring>

#include "collective/communicator.h"
#include "collective/pieces.h"
#include "collective/reduce.h"
#include "exchange/exchange.h"

namespace rocenante {

namespace {
const char* at(const void* p, size_t offset) { return static_cast<const char*>(p) + offset; }
char* at(void* p, size_t offset) { return static_cast<char*>(p) + offset; }
}  // namespace

void Communicator::barrier(Milliseconds timeout) {
  begin(record(Collective::barrier, 0, DType::uint8), timeout);
  exchange_->open(0);
  exchange_->publish(Parts::none());
  exchange_->await_all();
}

void Communicator::all_gather(const void* in, void* const* out, size_t bytes, DType dtype,
                              Milliseconds timeout) {
  begin(record(Collective::all_gather, bytes, dtype), timeout);
  Pieces(bytes, config_.slot_bytes).for_each([&](size_t offset, size_t n) {
    copy_bytes(exchange_->open(n), at(in, offset), n);
    exchange_->publish(Parts::same(n));
    copy_bytes(at(out[rank_], offset), at(in, offset), n);
    exchange_->await_all();
    for (int k = 1; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      copy_bytes(at(out[r], offset), exchange_->await(r), n);
    }
  });
}

void Communicator::reduce_scatter(const void* const* in, void* out, size_t count, DType dtype,
                                  Reduction reduction, Milliseconds timeout) {
  check_reduction(dtype, reduction.op);
  const size_t bytes = count * size_of(dtype);
  CallRecord call = record(Collective::reduce_scatter, bytes, dtype);
  call.op = reduction.op;
  call.reduces = true;
  begin(call, timeout);
  const bool scaled = reduction.op == ReduceOp::premul_sum;
  const size_t lane = lane_bytes(config_.slot_bytes, size_);
  Pieces(bytes, lane).for_each([&](size_t offset, size_t n) {
    const auto ranks = static_cast<size_t>(size_);
    const size_t stride = n * ranks <= kInlineBytes ? n : lane;
    char* staged = exchange_->open(stride == n ? n * ranks : lane * ranks);
    for (int r = 0; r < size_; ++r) {
      char* to = staged + static_cast<size_t>(r) * stride;
      if (scaled)
        premultiply(dtype, reduction.factor, to, at(in[r], offset), n / size_of(dtype));
      else if (r != rank_)
        copy_bytes(to, at(in[r], offset), n);
    }
    exchange_->publish(Parts::lanes(stride, n));
    exchange_->await_all();
    const void* parts[kMaxRanks];
    const size_t mine = static_cast<size_t>(rank_) * stride;
    for (int r = 0; r < size_; ++r)
      parts[r] = r != rank_ ? exchange_->await(r) + mine
                 : scaled   ? staged + mine
                            : at(in[r], offset);
    rocenante::reduce(dtype, reduction.op, at(out, offset), parts, size_, n / size_of(dtype));
  });
}

void Communicator::all_to_all(const void* const* in, void* const* out, size_t bytes, DType dtype,
                              Milliseconds timeout) {
  begin(record(Collective::all_to_all, bytes, dtype), timeout);
  std::vector<size_t> sizes(static_cast<size_t>(size_), bytes);
  move_lanes(in, sizes.data(), out, sizes.data(), bytes);
}

void Communicator::all_to_all_v(const void* const* in, const size_t* in_bytes, void* const* out,
                                const size_t* out_bytes, DType dtype, Milliseconds timeout) {
  begin(record(Collective::all_to_all_v, 0, dtype), timeout);
  // First everyone learns the whole matrix of sizes, so that all ranks agree on the number of
  // steps, and all of them raise if a pair does not fit.
  const auto n = static_cast<size_t>(size_);
  std::vector<uint64_t> matrix(2 * n * n);  // [rank][sends to, receives from][peer]
  const size_t row_bytes = 2 * n * sizeof(uint64_t);
  auto* mine = reinterpret_cast<uint64_t*>(exchange_->open(row_bytes));
  for (size_t r = 0; r < n; ++r) {
    mine[r] = in_bytes[r];
    mine[n + r] = out_bytes[r];
  }
  exchange_->publish(Parts::same(row_bytes));
  exchange_->await_all();
  for (int r = 0; r < size_; ++r)
    std::memcpy(&matrix[static_cast<size_t>(r) * 2 * n], exchange_->await(r), row_bytes);
  uint64_t most = 0;
  for (size_t from = 0; from < n; ++from)
    for (size_t to = 0; to < n; ++to) {
      const uint64_t sent = matrix[from * 2 * n + to], expected = matrix[to * 2 * n + n + from];
      most = std::max(most, sent);
      if (sent != expected)
        exchange_->raise(ErrorKind::mismatch, "rank " + std::to_string(from) + " sends " +
                                                  std::to_string(sent) + " bytes to rank " +
                                                  std::to_string(to) + ", which expects " +
                                                  std::to_string(expected) +
                                                  ": the split sizes of the two ranks do not fit");
    }
  if (most > 0) move_lanes(in, in_bytes, out, out_bytes, most);
}

// Moves in[r] to rank r and its part for this rank to out[r], a lane of each slot for every pair;
// `most` is the largest of all ranks' sizes.
void Communicator::move_lanes(const void* const* in, const size_t* in_bytes, void* const* out,
                              const size_t* out_bytes, size_t most) {
  const size_t lane = lane_bytes(config_.slot_bytes, size_);
  const auto ranks = static_cast<size_t>(size_);
  const auto piece = [](size_t total, size_t offset, size_t n) {
    return offset < total ? std::min(total - offset, n) : 0;
  };
  Pieces(most, lane).for_each([&](size_t offset, size_t n) {
    const size_t stride = n * ranks <= kInlineBytes ? n : lane;
    char* staged = exchange_->open(stride == n ? n * ranks : lane * ranks);
    size_t lengths[kMaxRanks];
    for (int r = 0; r < size_; ++r) {
      lengths[r] = piece(in_bytes[r], offset, n);
      if (r != rank_ && lengths[r] > 0)
        copy_bytes(staged + static_cast<size_t>(r) * stride, at(in[r], offset), lengths[r]);
    }
    exchange_->publish(Parts::lanes(stride, lengths));
    if (const size_t m = piece(in_bytes[rank_], offset, n); m > 0)
      copy_bytes(at(out[rank_], offset), at(in[rank_], offset), m);
    exchange_->await_all();
    for (int k = 1; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      if (const size_t m = piece(out_bytes[r], offset, n); m > 0)
        copy_bytes(at(out[r], offset), exchange_->await(r) + static_cast<size_t>(rank_) * stride,
                   m);
    }
  });
}

}  // namespace rocenante
