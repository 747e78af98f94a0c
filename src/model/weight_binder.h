// Takes tensors out of a checkpoint one by one, checking each, and in the end names every tensor
// that was not asked for.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/quantization.h"
#include "model/weights.h"

namespace loopspec {

class WeightBinder {
 public:
  WeightBinder(const ModelSpec& spec, const Checkpoint& checkpoint,
               Quantization quantization = Quantization::kNone)
      : spec_(spec), checkpoint_(checkpoint), quantization_(quantization) {}

  // The tensor of this name and shape; throws Error when it is missing or differs. A matrix of few
  // bits is put together from the tensors that the file has in its place.
  TensorView Take(const std::string& name, const std::vector<int64_t>& shape);
  // Values made of the file's tensors, as a tensor [values.size()] of float32.
  TensorView Own(std::vector<float> values);
  bool Has(const std::string& name) const { return checkpoint_.tensors().contains(name); }
  // A tensor that may be there and is not used.
  void Ignore(const std::string& name);
  // The head: its own tensor, or the embedding when tied (a copy in the file is then passed over).
  void TakeHead(const std::string& name, ModelWeights& weights);
  // Throws Error naming a tensor that was not asked for.
  void Finish() const;

  int64_t parameters() const { return parameters_; }
  std::vector<std::shared_ptr<const std::vector<float>>> own() const { return own_; }

 private:
  const ModelSpec& spec_;
  const Checkpoint& checkpoint_;
  const Quantization quantization_;
  std::set<std::string, std::less<>> taken_;
  int64_t parameters_ = 0;
  std::vector<std::shared_ptr<const std::vector<float>>> own_;
};

}  // namespace loopspec
