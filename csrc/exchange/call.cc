#include "exchange/call.h"

namespace rocenante {

namespace {
// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
}  // namespace

uint32_t fingerprint(const CallRecord& call) {
  // The operation's number is left out: the step in the signal's low half stands for it.
  const uint64_t what =
      uint64_t(call.collective) | uint64_t(call.algorithm) << 8 | uint64_t(call.dtype) << 16 |
      uint64_t(call.reduces ? call.op : ReduceOp{}) << 24 | uint64_t(uint32_t(call.root)) << 32;
  return static_cast<uint32_t>(mix(mix(what + 0x9e3779b97f4a7c15) ^ call.bytes));
}

std::string describe(const CallRecord& call) {
  std::string text = std::string(name_of(call.collective)) + " #" + std::to_string(call.operation);
  if (call.collective == Collective::barrier) return text;
  text += " (" + std::string(name_of(call.dtype));
  // premul_sum and the algorithm matter to a reader only where ranks differ in them, and then they
  // do.
  if (call.reduces) text += ", " + std::string(name_of(call.op));
  if (call.algorithm != Algorithm::direct) text += ", " + std::string(name_of(call.algorithm));
  if (call.collective != Collective::all_to_all_v)
    text += ", " + std::to_string(call.bytes) + " bytes";
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  return text + ")";
}

}  // namespace rocenante
