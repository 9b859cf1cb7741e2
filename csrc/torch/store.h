// The c10d Store as a Bootstrap, under a prefix of the communicator's own.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "core/bootstrap.h"

namespace rocenante {

class StoreBootstrap final : public Bootstrap {
 public:
  // A process may make a communicator of this name again through the same store. What the earlier
  // one left there must not be taken for the new one's, so each rank counts its communicators; the
  // counts agree because making one is collective.
  StoreBootstrap(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int rank)
      : store_(std::move(store)), prefix_("rocenante/" + name + "/") {
    const int64_t generation = store_->add(prefix_ + "generation/" + std::to_string(rank), 1);
    prefix_ += std::to_string(generation) + "/";
  }

  void set(const std::string& key, const Bytes& value) override {
    store_->set(prefix_ + key, value);
  }
  bool check(const std::string& key) override { return store_->check({prefix_ + key}); }
  Bytes get(const std::string& key) override { return store_->get(prefix_ + key); }
  void remove(const std::string& key) { store_->deleteKey(prefix_ + key); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

}  // namespace rocenante
