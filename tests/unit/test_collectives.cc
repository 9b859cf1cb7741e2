// Every collective, on ranks that are threads, with messages shorter and longer than a slot.
#include "ranks.h"

namespace rocenante::test {
namespace {

// An element that says whose it is, which one, and in which round.
int32_t element(int rank, size_t i, int round) {
  return static_cast<int32_t>(
      (static_cast<size_t>(rank) * 7919 + i * 31 + static_cast<size_t>(round)) % 100003);
}

std::vector<int32_t> data(int rank, size_t count, int round) {
  std::vector<int32_t> v(count);
  for (size_t i = 0; i < count; ++i) v[i] = element(rank, i, round);
  return v;
}

int32_t sum_of(int size, size_t i, int round) {
  int32_t sum = 0;
  for (int r = 0; r < size; ++r) sum += element(r, i, round);
  return sum;
}

Config small_slots() {
  Config config;
  config.slot_bytes = 16 << 10;
  return config;
}

// Below and above the inline limit, the two-shot limit and (of 16 KiB) the slot.
const size_t kCounts[] = {0, 1, 3, 14, 15, 1000, 4096, 5000, 70001};

class Collectives : public testing::TestWithParam<int> {
 protected:
  void on_ranks(const std::function<void(Communicator&, size_t count, int round)>& body) {
    run_ranks(
        GetParam(),
        [&](Communicator& c) {
          int round = 0;
          for (size_t count : kCounts)
            for (int again = 0; again < 3; ++again) body(c, count, round++);
        },
        small_slots());
  }
};

TEST_P(Collectives, AllReduce) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const auto in = data(c.rank(), count, round);
    std::vector<int32_t> out(count), in_place = in;
    c.all_reduce(in.data(), out.data(), count, DType::int32, {}, kTimeout);
    c.all_reduce(in_place.data(), in_place.data(), count, DType::int32, {}, kTimeout);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], sum_of(c.size(), i, round)) << i;
    ASSERT_EQ(in_place, out);
  });
}

TEST_P(Collectives, AllReduceOfScaledContributions) {
  run_ranks(
      GetParam(),
      [](Communicator& c) {
        for (size_t count : kCounts) {
          std::vector<float> v(count, 1.0f);
          const double factor = c.rank() + 1;
          c.all_reduce(v.data(), v.data(), count, DType::float32, {ReduceOp::premul_sum, factor},
                       kTimeout);
          const int n = c.size();
          for (float x : v) ASSERT_EQ(x, static_cast<float>(n * (n + 1) / 2));
        }
      },
      small_slots());
}

TEST_P(Collectives, AllGather) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const auto in = data(c.rank(), count, round);
    std::vector<std::vector<int32_t>> out(static_cast<size_t>(c.size()),
                                          std::vector<int32_t>(count));
    std::vector<void*> to;
    for (auto& v : out) to.push_back(v.data());
    c.all_gather(in.data(), to.data(), count * 4, DType::int32, kTimeout);
    for (int r = 0; r < c.size(); ++r)
      ASSERT_EQ(out[static_cast<size_t>(r)], data(r, count, round)) << r;
  });
}

TEST_P(Collectives, ReduceScatter) {
  on_ranks([](Communicator& c, size_t count, int round) {
    std::vector<std::vector<int32_t>> in;
    std::vector<const void*> from;
    for (int r = 0; r < c.size(); ++r) in.push_back(data(c.rank() + 100 * r, count, round));
    for (auto& v : in) from.push_back(v.data());
    std::vector<int32_t> out(count);
    c.reduce_scatter(from.data(), out.data(), count, DType::int32, {}, kTimeout);
    for (size_t i = 0; i < count; ++i) {
      int32_t sum = 0;
      for (int r = 0; r < c.size(); ++r) sum += element(r + 100 * c.rank(), i, round);
      ASSERT_EQ(out[i], sum) << i;
    }
  });
}

TEST_P(Collectives, AllToAll) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const auto n = static_cast<size_t>(c.size());
    std::vector<std::vector<int32_t>> in, out(n, std::vector<int32_t>(count));
    std::vector<const void*> from;
    std::vector<void*> to;
    for (int r = 0; r < c.size(); ++r) in.push_back(data(c.rank() * 100 + r, count, round));
    for (size_t r = 0; r < n; ++r) {
      from.push_back(in[r].data());
      to.push_back(out[r].data());
    }
    c.all_to_all(from.data(), to.data(), count * 4, DType::int32, kTimeout);
    for (int r = 0; r < c.size(); ++r)
      ASSERT_EQ(out[static_cast<size_t>(r)], data(r * 100 + c.rank(), count, round)) << r;
  });
}

TEST_P(Collectives, AllToAllOfUnequalSizes) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const auto n = static_cast<size_t>(c.size());
    const auto length = [&](int from, int to) {
      return count * static_cast<size_t>((from + 2 * to) % 3);
    };
    std::vector<std::vector<int32_t>> in, out;
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<size_t> in_bytes, out_bytes;
    for (int r = 0; r < c.size(); ++r) {
      in.push_back(data(c.rank() * 100 + r, length(c.rank(), r), round));
      out.emplace_back(length(r, c.rank()));
      in_bytes.push_back(in.back().size() * 4);
      out_bytes.push_back(out.back().size() * 4);
    }
    for (size_t r = 0; r < n; ++r) {
      from.push_back(in[r].data());
      to.push_back(out[r].data());
    }
    c.all_to_all_v(from.data(), in_bytes.data(), to.data(), out_bytes.data(), DType::int32,
                   kTimeout);
    for (int r = 0; r < c.size(); ++r)
      ASSERT_EQ(out[static_cast<size_t>(r)], data(r * 100 + c.rank(), length(r, c.rank()), round));
  });
}

TEST_P(Collectives, Broadcast) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const int root = round % c.size();
    auto v = data(c.rank(), count, round);
    c.broadcast(v.data(), count * 4, DType::int32, root, kTimeout);
    ASSERT_EQ(v, data(root, count, round));
  });
}

TEST_P(Collectives, Reduce) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const int root = round % c.size();
    const auto in = data(c.rank(), count, round);
    std::vector<int32_t> out(count, -1);
    c.reduce(in.data(), c.rank() == root ? out.data() : nullptr, count, DType::int32, {}, root,
             kTimeout);
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(out[i], c.rank() == root ? sum_of(c.size(), i, round) : -1);
  });
}

TEST_P(Collectives, GatherAndScatter) {
  on_ranks([](Communicator& c, size_t count, int round) {
    const int root = round % c.size();
    const auto n = static_cast<size_t>(c.size());
    const auto in = data(c.rank(), count, round);
    std::vector<std::vector<int32_t>> all(n, std::vector<int32_t>(count));
    std::vector<void*> to;
    std::vector<const void*> from;
    for (auto& v : all) {
      to.push_back(v.data());
      from.push_back(v.data());
    }
    const bool is_root = c.rank() == root;
    c.gather(in.data(), is_root ? to.data() : nullptr, count * 4, DType::int32, root, kTimeout);
    for (int r = 0; is_root && r < c.size(); ++r)
      ASSERT_EQ(all[static_cast<size_t>(r)], data(r, count, round));
    std::vector<int32_t> back(count, -1);
    c.scatter(is_root ? from.data() : nullptr, back.data(), count * 4, DType::int32, root,
              kTimeout);
    ASSERT_EQ(back, in);
  });
}

TEST_P(Collectives, Barrier) {
  std::atomic<int> entered{0};
  run_ranks(GetParam(), [&](Communicator& c) {
    for (int i = 1; i <= 200; ++i) {
      entered.fetch_add(1);
      c.barrier(kTimeout);
      ASSERT_GE(entered.load(), i * c.size());
      c.barrier(kTimeout);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Collectives, testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace rocenante::test
