// torch's tensors, dtypes and reductions in the core's terms.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "core/types.h"

namespace rocenante {

// Throws usage where the core cannot reduce the dtype.
DType reduction_dtype(const at::Tensor& tensor, const Reduction& reduction);
// For collectives that only move elements: any dtype goes, as bytes if the core has no name for it.
DType transfer_dtype(const at::Tensor& tensor);
Reduction reduction_of(const c10d::ReduceOp& op);

// Throws usage unless the tensor is strided CPU memory.
void check_readable(const at::Tensor& tensor, const char* call, const char* what);
// ... and no two of its elements share memory.
void check_writable(const at::Tensor& tensor, const char* call, const char* what);
void check_same(const at::Tensor& tensor, const at::Tensor& reference, const char* call,
                const char* what);
// Throws usage unless the list holds one tensor: torch's lists have one element per device of a
// rank.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call);

// Whether elements may share memory: false for every slice, transpose or permutation of dense
// memory. Strides are in units of which an element takes `item`.
bool may_overlap(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t item = 1);

// A tensor's elements in row-major order without gaps: its own memory where it is laid out like
// that, else a copy, which unpack() writes back.
class Packed {
 public:
  enum class Use { read, write, update };
  Packed(const at::Tensor& tensor, Use use);

  // The memory that the exchange reads or writes. Reads never go through it: see Use.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool copied() const { return copied_; }
  void unpack() const;
  // Moves what is read to memory of its own if it overlaps `other`, unless both begin at the same
  // place and that is safe: collectives read a piece before they write the piece at the same
  // offset.
  void separate(const Packed& other, bool same_place_is_safe = true);

 private:
  at::Tensor tensor_;
  at::Tensor packed_;
  void* data_;
  size_t bytes_;
  bool copied_;
};

using PackedList = c10::SmallVector<Packed, 8>;
using Pointers = c10::SmallVector<void*, 8>;
using ConstPointers = c10::SmallVector<const void*, 8>;
using Sizes = c10::SmallVector<size_t, 8>;

PackedList pack(const std::vector<at::Tensor>& tensors, Packed::Use use);
void unpack(const PackedList& list);
Pointers pointers(const PackedList& list);
ConstPointers const_pointers(const PackedList& list);
// One pointer for each of `parts` equal parts.
Pointers slices(const Packed& packed, int parts);
ConstPointers const_slices(const Packed& packed, int parts);

}  // namespace rocenante
