#include "tools/trace_file.h"

#include "base/json.h"
#include "tools/output_file.h"

namespace loopspec::tools {

void WriteTrace(const std::string& path, const Engine& engine, const std::vector<int>& depths,
                const Choice& result) {
  OrderedJson tokens = OrderedJson::array();
  for (const Token& token : result.tokens) tokens.push_back(token.id);
  OrderedJson events = OrderedJson::array();
  for (const TraceEvent& event : result.trace) {
    OrderedJson entry = {{"kind", NameOf(event.kind)}, {"step", event.step},
                         {"branch", event.branch},     {"parent", event.parent},
                         {"token", event.token},       {"position", event.position},
                         {"depth", event.depth},       {"proposal", event.proposal}};
    if (engine.facts().has_tokenizer && event.token >= 0) {
      const int32_t id[] = {event.token};
      entry["text"] = engine.Decode(id, false);
    }
    events.push_back(std::move(entry));
  }
  const OrderedJson trace = {{"recurrence", engine.facts().recurrence},
                             {"kv_type", engine.facts().kv_type},
                             {"depths", depths},
                             {"tokens", tokens},
                             {"events", events}};
  WriteTextFile(path, trace.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

}  // namespace loopspec::tools
