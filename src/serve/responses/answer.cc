#include "serve/responses/answer.h"

#include <utility>

namespace loopspec::serve {
namespace {

using Kind = AnswerPart::Kind;

// The names of one kind of text in events.
struct TextNames {
  const char* part_added;
  const char* delta;
  const char* done;
  const char* part_done;
  const char* index;  // of the part in its item
  const char* part;   // its type
};
constexpr TextNames kTextNames = {"response.content_part.added",
                                  "response.output_text.delta",
                                  "response.output_text.done",
                                  "response.content_part.done",
                                  "content_index",
                                  "output_text"};
constexpr TextNames kReasoningNames = {"response.content_part.added",
                                       "response.reasoning_text.delta",
                                       "response.reasoning_text.done",
                                       "response.content_part.done",
                                       "content_index",
                                       "reasoning_text"};
constexpr TextNames kSummaryNames = {"response.reasoning_summary_part.added",
                                     "response.reasoning_summary_text.delta",
                                     "response.reasoning_summary_text.done",
                                     "response.reasoning_summary_part.done",
                                     "summary_index",
                                     "summary_text"};

const TextNames& NamesOf(Kind kind, bool summary) {
  if (kind == Kind::kText) return kTextNames;
  return summary ? kSummaryNames : kReasoningNames;
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(Form form, const CallContext& context, AnswerSetup setup)
    : PartAnswer(std::move(setup)),
      form_(std::move(form)),
      id_(context.id),
      model_(context.model),
      created_(context.created) {}

// ---- The response ----

OrderedJson ResponsesAnswer::Response(const char* status) const {
  OrderedJson response = {{"id", "resp_" + id_},           {"object", "response"},
                          {"created_at", created_},        {"status", status},
                          {"background", false},           {"error", nullptr},
                          {"incomplete_details", nullptr}, {"model", model_},
                          {"output", OrderedJson::array()}};
  for (const auto& [key, value] : form_.echo.items()) response[key] = value;
  if (form_.max_tokens) response["max_output_tokens"] = setup().max_tokens;
  response["usage"] = nullptr;
  if (!end()) return response;
  response["output"] = Items();
  if (cut()) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  const Usage counts = usage();
  response["usage"] = {{"input_tokens", counts.prompt_tokens},
                       {"input_tokens_details",
                        {{"cached_tokens", counts.cached_tokens}, {"cache_write_tokens", 0}}},
                       {"output_tokens", counts.completion_tokens},
                       {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
                       {"total_tokens", counts.prompt_tokens + counts.completion_tokens}};
  return response;
}

OrderedJson ResponsesAnswer::Items() const {
  OrderedJson items = OrderedJson::array();
  for (size_t i = 0; i < blocks().size(); ++i) items.push_back(ItemJson(i, ItemStatus(i)));
  return items;
}

const char* ResponsesAnswer::ItemStatus(size_t block) const {
  return (cut() || call_cut()) && block + 1 == blocks().size() ? "incomplete" : "completed";
}

std::string ResponsesAnswer::ItemId(size_t block) const {
  const Kind kind = blocks()[block].kind;
  const char* prefix = kind == Kind::kReasoning ? "rs" : kind == Kind::kText ? "msg" : "fc";
  return fmt::format("{}_{}_{}", prefix, id_, block);
}

bool ResponsesAnswer::Summarized(size_t block) const {
  return form_.summary && blocks()[block].kind == Kind::kReasoning;
}

OrderedJson ResponsesAnswer::PartJson(size_t index, bool whole) const {
  const AnswerBlock& block = blocks()[index];
  OrderedJson part = {{"type", NamesOf(block.kind, form_.summary).part},
                      {"text", whole ? block.text : ""}};
  if (block.kind == Kind::kText) {
    part["annotations"] = OrderedJson::array();
    part["logprobs"] = OrderedJson::array();
  }
  return part;
}

// An item that has just begun is empty.
OrderedJson ResponsesAnswer::ItemJson(size_t index, const char* status) const {
  const AnswerBlock& block = blocks()[index];
  const bool whole = std::string_view(status) != "in_progress";
  OrderedJson item = {{"id", ItemId(index)}};
  OrderedJson parts = OrderedJson::array();
  if (whole && block.kind != Kind::kCall) parts.push_back(PartJson(index, true));
  if (block.kind == Kind::kText) {
    item.update({{"type", "message"}, {"role", "assistant"}, {"content", std::move(parts)}});
  } else if (Summarized(index)) {
    item.update({{"type", "reasoning"}, {"summary", std::move(parts)}});
  } else if (block.kind == Kind::kReasoning) {
    item.update(
        {{"type", "reasoning"}, {"summary", OrderedJson::array()}, {"content", std::move(parts)}});
  } else {
    item.update({{"type", "function_call"},
                 {"call_id", fmt::format("call_{}_{}", id_, index)},
                 {"name", block.name},
                 {"arguments", whole ? block.text : ""}});
  }
  item["status"] = status;
  return item;
}

std::string ResponsesAnswer::Body(double) {
  return Dump(Response(EndStatus()));
}

// ---- Events ----

std::string ResponsesAnswer::Event(const char* type, OrderedJson members) {
  OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(members);
  return NamedEvent(event);
}

std::string ResponsesAnswer::ItemEvent(const char* type, size_t block, OrderedJson members) {
  OrderedJson all = {{"item_id", ItemId(block)}, {"output_index", block}};
  all.update(members);
  return Event(type, std::move(all));
}

std::string ResponsesAnswer::PartEvent(const char* type, size_t block, OrderedJson members) {
  OrderedJson all = {{NamesOf(blocks()[block].kind, form_.summary).index, 0}};
  all.update(members);
  return ItemEvent(type, block, std::move(all));
}

std::string ResponsesAnswer::Begin() {
  // The answer may be complete when its first event is written: items still come one by one.
  OrderedJson response = Response("in_progress");
  response["output"] = OrderedJson::array();
  response["incomplete_details"] = response["usage"] = nullptr;
  std::string out = Event("response.created", {{"response", response}});
  return out + Event("response.in_progress", {{"response", std::move(response)}});
}

std::string ResponsesAnswer::Open(size_t block) {
  std::string out = Event("response.output_item.added",
                          {{"output_index", block}, {"item", ItemJson(block, "in_progress")}});
  const Kind kind = blocks()[block].kind;
  if (kind == Kind::kCall) return out;
  return out + PartEvent(NamesOf(kind, form_.summary).part_added, block,
                         {{"part", PartJson(block, false)}});
}

std::string ResponsesAnswer::Delta(size_t block, std::string_view text) {
  const Kind kind = blocks()[block].kind;
  if (kind == Kind::kCall)
    return ItemEvent("response.function_call_arguments.delta", block, {{"delta", text}});
  OrderedJson members = {{"delta", text}};
  if (kind == Kind::kText) members["logprobs"] = OrderedJson::array();
  return PartEvent(NamesOf(kind, form_.summary).delta, block, std::move(members));
}

std::string ResponsesAnswer::Close(size_t index) {
  const AnswerBlock& block = blocks()[index];
  std::string out;
  if (block.kind == Kind::kCall) {
    out = ItemEvent("response.function_call_arguments.done", index,
                    {{"name", block.name}, {"arguments", block.text}});
  } else {
    const TextNames& names = NamesOf(block.kind, form_.summary);
    OrderedJson members = {{"text", block.text}};
    if (block.kind == Kind::kText) members["logprobs"] = OrderedJson::array();
    out = PartEvent(names.done, index, std::move(members));
    out += PartEvent(names.part_done, index, {{"part", PartJson(index, true)}});
  }
  return out + Event("response.output_item.done",
                     {{"output_index", index}, {"item", ItemJson(index, ItemStatus(index))}});
}

std::string ResponsesAnswer::End() {
  const char* type = cut() ? "response.incomplete" : "response.completed";
  return Event(type, {{"response", Response(EndStatus())}});
}

std::string ResponsesAnswer::ErrorEvents(const ApiError& error) const {
  OrderedJson response = Response("failed");
  response["error"] = {{"code", "server_error"}, {"message", error.message}};
  return NamedEvent({{"type", "response.failed"},
                     {"sequence_number", sequence_},
                     {"response", std::move(response)}});
}

}  // namespace loopspec::serve
