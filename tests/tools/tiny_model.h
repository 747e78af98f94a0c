// Checkpoints of a few hundred bytes, written by the tests: hidden 4, head_dim 2, three tokens.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tests/tools/cli.h"

namespace loopspec::test {

struct TinyTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "F32";
};

struct TinyModel {
  Json config;
  std::vector<TinyTensor> tensors;

  static TinyModel Ouro();
  static TinyModel Raven();
  TinyTensor& tensor(const std::string& name);
  void Remove(const std::string& name);
  // config.json and model.safetensors into `folder` of the scratch; returns the folder.
  std::string Save(const Scratch& scratch, const std::string& folder) const;
  std::string Safetensors() const;
};

}  // namespace loopspec::test
