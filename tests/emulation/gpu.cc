#include "gpu.h"

#include "device/kernel_table.h"

namespace rocenante::test {

Gpu::Gpu(unsigned rank, const device::WindowLayout& layout, unsigned threads, char* window,
         device::Control& control)
    : rank_(rank),
      layout_(layout),
      threads_(threads),
      window_(window),
      control_(control),
      state_(std::make_unique<device::ChannelState>()),
      stream_(layout.channels * threads) {
  for (unsigned b = 0; b < layout.channels; ++b)
    grid_.push_back(std::make_unique<emulator::Block>(b, layout.channels, threads));
}

void Gpu::add(Launch launch) {
  launch.args.rank = rank_;
  launch.args.layout = layout_;
  launch.args.window = window_;
  launch.args.control = &control_;
  launch.args.state = state_.get();
  launches_.push_back(std::move(launch));
}

void Gpu::start(std::atomic<unsigned>& live) {
  live += layout_.channels * threads_;
  for (unsigned b = 0; b < layout_.channels; ++b) {
    for (unsigned t = 0; t < threads_; ++t) {
      emulator::spawn(grid_[b].get(), t, [this, b, t, &live] {
        run_thread(b, t);
        --live;
      });
    }
  }
}

void Gpu::run_thread(unsigned block, unsigned thread) {
  for (const Launch& launch : launches_) {
    if (thread == 0) grid_[block]->blocks = launch.blocks;
    if (block == 0 && thread == 0) launch.prepare();
    stream_.wait(false);  // a kernel begins when all before it on the stream is done
    if (block < launch.blocks) {
      device::visit_kernel(launch.kernel, [&](auto kernel) { decltype(kernel)::run(launch.args); });
    }
    stream_.wait(false);
    if (block == 0 && thread == 0) launch.check();
  }
}

}  // namespace rocenante::test
