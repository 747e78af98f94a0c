// The "decoder" of a tokenizer.json: how tokens become text again.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

// Decoding token by token. Tokens may reach a step in pieces: after Fuse or ByteLevel all text is
// one token, of which more and more becomes known.
class DecoderStream {
 public:
  virtual ~DecoderStream() = default;
  // A piece of a token, whole characters; `last` when the token ends with it.
  virtual void Feed(std::string_view piece, bool last) = 0;
  // No token follows.
  virtual void Finish() = 0;
};

// One step: tokens in, tokens out.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void Apply(std::vector<std::string>& tokens) const = 0;
  // A stream that hands what is certain to `next` as soon as it is.
  virtual std::unique_ptr<DecoderStream> Stream(DecoderStream& next) const = 0;
};

class Decoder {
 public:
  Decoder() = default;
  // Null, a decoder or a Sequence of them; throws Error naming an unsupported type.
  static Decoder FromJson(const Json& json, std::string_view what);

  std::string Decode(const std::vector<std::string_view>& tokens) const;

  // The steps of a stream, owned together. Text comes out of `text`, whole characters at a time.
  struct Pipeline {
    std::unique_ptr<DecoderStream> sink;
    std::vector<std::unique_ptr<DecoderStream>> steps;  // last step first
    DecoderStream& front() { return steps.empty() ? *sink : *steps.back(); }
  };
  // `text` must outlive the pipeline.
  Pipeline Stream(std::string& text) const;

 private:
  void Add(const Json& json, std::string_view what);

  std::vector<std::unique_ptr<DecoderStep>> steps_;
  bool missing_ = true;  // without a decoder, tokens are joined with spaces
};

// The steps, made by decoder_steps.cc. `what` names the decoder in errors.
std::unique_ptr<DecoderStep> ReadDecoderStep(const std::string& type, const Json& json,
                                             std::string_view what);

}  // namespace loopspec
