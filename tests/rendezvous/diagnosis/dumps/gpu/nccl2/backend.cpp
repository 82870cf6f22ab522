// gloo under the name of an NCCL backend, for record.py: what torch's hook records of nccl2 on a GPU
// is recorded without one. With completion hooks a collective is completed when gloo has done it,
// and a batched send or receive when it is issued.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>

#include <thread>

using c10::intrusive_ptr;
using Tensors = std::vector<at::Tensor>;

struct Issued : c10d::Work {
  Issued() {
    finish();
  }
};

struct Covering : c10d::Work {
  explicit Covering(std::vector<intrusive_ptr<Work>> works) : works(std::move(works)) {}
  bool isCompleted() override {
    return std::all_of(works.begin(), works.end(), [](auto& work) { return work->isCompleted(); });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& work : works) {
      work->wait(timeout);
    }
    return true;
  }
  std::vector<intrusive_ptr<Work>> works;
};

struct Named : c10d::Backend {
  Named(intrusive_ptr<Backend> gloo, std::string name, bool hasHooks)
      : Backend(gloo->getRank(), gloo->getSize()), gloo(gloo), name(name), hasHooks(hasHooks) {}

  const std::string getBackendName() const override {
    return name;
  }
  bool supportsCompletionHooks() const override {
    return hasHooks;
  }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    hooks[id] = hook;
  }
  void unregisterCompletionHook(int64_t id) override {
    hooks.erase(id);
  }
  intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return watched(gloo->allreduce(tensors, options));
  }
  intrusive_ptr<c10d::Work> send(Tensors& tensors, int rank, int tag) override {
    return exchanged(gloo->send(tensors, rank, tag));
  }
  intrusive_ptr<c10d::Work> recv(Tensors& tensors, int rank, int tag) override {
    return exchanged(gloo->recv(tensors, rank, tag));
  }
  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override {
    batch.emplace();
  }
  intrusive_ptr<c10d::Work> endCoalescing() override {
    auto works = std::move(*batch);
    batch.reset();
    return c10::make_intrusive<Covering>(std::move(works));
  }

  intrusive_ptr<c10d::Work> exchanged(intrusive_ptr<c10d::Work> work) {
    if (!batch) {
      return watched(work);
    }
    batch->push_back(work);
    return c10::make_intrusive<Issued>();
  }
  intrusive_ptr<c10d::Work> watched(intrusive_ptr<c10d::Work> work) {
    std::thread([this, work] {
      work->wait();
      for (auto& hook : hooks) {
        hook.second({work->getCompletionKey(), std::nullopt});
      }
    }).detach();
    return work;
  }

  intrusive_ptr<Backend> gloo;
  std::string name;
  bool hasHooks;
  std::map<int64_t, c10d::CompletionHook> hooks;
  std::optional<std::vector<intrusive_ptr<c10d::Work>>> batch;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("named", [](intrusive_ptr<c10d::Backend> gloo, std::string name, bool hasHooks) {
    return intrusive_ptr<c10d::Backend>(c10::make_intrusive<Named>(gloo, name, hasHooks));
  });
}
