// References of a schema: the places that $id, $anchor and $defs name, and what a $ref leads to.
#include <algorithm>

#include "base/error.h"
#include "grammar/schema_shapes.h"

namespace loopspec::grammar {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
  return -1;
}

std::string PercentDecoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void SchemaReader::FindIds(const OrderedJson& schema, int depth, uint32_t resource) {
  if (depth > 600) return;
  if (schema.is_object()) {
    for (const char* key : {"$id", "id"}) {
      if (!schema.contains(key) || !schema[key].is_string()) continue;
      if (old_references_ && schema.contains("$ref")) continue;
      const auto& id = schema[key].get_ref<const std::string&>();
      if (id.starts_with('#')) {  // up to draft 7: an anchor
        ids_.emplace(resources_[resource].base + id, &schema);
        ids_.emplace(id, &schema);
        continue;
      }
      const std::string address = Absolute(resources_[resource].base, id.substr(0, id.find('#')));
      if (depth == 0) {
        resources_[0].base = address;
      } else {
        resource = static_cast<uint32_t>(resources_.size());
        resources_.push_back({&schema, address});
      }
      ids_.emplace(address, &schema);
      ids_.emplace(id, &schema);
    }
    for (const char* key : {"$anchor", "$dynamicAnchor"}) {
      if (!schema.contains(key) || !schema[key].is_string()) continue;
      const std::string name = "#" + schema[key].get<std::string>();
      ids_.emplace(resources_[resource].base + name, &schema);
      ids_.emplace(name, &schema);
      if (std::string_view(key) == "$dynamicAnchor") ++dynamic_anchors_[name];
    }
    if (schema.contains("$recursiveAnchor")) ++dynamic_anchors_["#"];
    const bool refers = schema.contains("$ref") || schema.contains("$dynamicRef") ||
                        schema.contains("$recursiveRef");
    if (resource != 0 && refers) resource_of_.emplace(&schema, resource);
  }
  if (schema.is_structured()) {
    for (const OrderedJson& child : schema) FindIds(child, depth + 1, resource);
  }
}

// A reference that is relative to an address, as an absolute one.
std::string SchemaReader::Absolute(const std::string& base, const std::string& reference) {
  const size_t scheme = base.find("://");
  if (reference.starts_with('#')) return base + reference;
  if (reference.empty() || scheme == std::string::npos ||
      reference.find(':') != std::string::npos) {
    return reference;
  }
  const size_t path = std::min(base.find('/', scheme + 3), base.size());
  if (reference[0] == '/') return base.substr(0, path) + reference;
  const size_t last = base.rfind('/');
  return base.substr(0, last < path || last == scheme + 2 ? path : last) + "/" + reference;
}

// What a JSON pointer leads to; null: nothing.
const OrderedJson* SchemaReader::Follow(const OrderedJson& from, const std::string& pointer) {
  const OrderedJson* target = &from;
  size_t at = 0;
  while (at < pointer.size()) {
    const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string key;
    for (size_t i = at + 1; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end) {
        key += pointer[++i] == '0' ? '~' : '/';
      } else {
        key += pointer[i];
      }
    }
    at = end;
    if (target->is_object() && target->contains(key)) {
      target = &(*target)[key];
    } else if (target->is_array() && !key.empty() && key.size() < 7 &&
               key.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(key) < target->size()) {
      target = &(*target)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return target;
}

const OrderedJson& SchemaReader::Resolve(const std::string& reference, const OrderedJson& schema) {
  const auto own = resource_of_.find(&schema);
  const Resource& resource = resources_[own == resource_of_.end() ? 0 : own->second];
  const std::string absolute = Absolute(resource.base, reference);
  for (const std::string& name : {absolute, reference}) {
    const auto id = ids_.find(name);
    if (id != ids_.end()) return *id->second;
  }
  const size_t hash = std::min(reference.find('#'), reference.size());
  std::vector<const OrderedJson*> targets;
  if (hash == 0) {
    targets = {resource.root, &root_};
  } else {
    for (const std::string& name : {absolute, reference}) {
      const std::string address = name.substr(0, name.find('#'));
      for (const std::string& known : {address, address + "#"}) {
        const auto found = ids_.find(known);
        if (found != ids_.end()) targets.push_back(found->second);
      }
    }
  }
  const std::string pointer =
      hash < reference.size() ? PercentDecoded(reference.substr(hash + 1)) : "";
  if (targets.empty() || (!pointer.empty() && pointer[0] != '/')) {
    Fail("the schema's $ref {} is not within the schema", reference.substr(0, 200));
  }
  for (const OrderedJson* target : targets) {
    if (const OrderedJson* found = Follow(*target, pointer)) return *found;
  }
  Fail("the schema's $ref {} leads nowhere", reference.substr(0, 200));
}

Demand SchemaReader::Target(Demand demand) {
  for (int steps = 0; steps < 300 && demand.schema->is_object(); ++steps) {
    const OrderedJson& schema = *demand.schema;
    if (!schema.contains("$ref") || !schema["$ref"].is_string()) break;
    if (!old_references_) {
      bool alone = true;
      for (const auto& [keyword, value] : schema.items()) {
        alone = alone && (keyword == "$ref" || SaysNothing(keyword));
      }
      if (!alone) break;
    }
    demand.schema = &Resolve(schema["$ref"], schema);
  }
  return demand;
}

}  // namespace loopspec::grammar
