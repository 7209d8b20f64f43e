// GLM: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>, with line ends between the
// parts (4.5, 4.6) or without (4.7 and later). Strings are written as they are, everything else as JSON.
#include <string>
#include <unordered_set>
#include <utility>

#include "tessera/text/argument_types.h"
#include "tessera/text/json_escape.h"
#include "tessera/text/tool_calls.h"

namespace tessera::text {
namespace {

// One argument's value, as JSON. What must be a string goes out as it comes; what may be something else is held back
// until its end tells what it is.
class GlmValue {
 public:
  explicit GlmValue(JsonTypes types) : types_(types) {}

  void append(std::string_view text, std::string& out) {
    if (kind_ == Kind::kUnknown && !text.empty()) begin(text.front(), out);
    if (kind_ == Kind::kString) {
      append_json_escaped(text, out);
    } else {
      held_ += text;
    }
  }

  void end(std::string& out) {
    if (kind_ == Kind::kString) {
      out += '"';
      return;
    }
    // A string may have white space around it; around anything else it means nothing.
    const std::string_view value = types_.has(JsonType::kString) ? std::string_view(held_) : trimmed(held_);
    const std::optional<JsonType> type = json_type_of(value);
    const bool as_json =
        type.has_value() && (!types_.has(JsonType::kString) || (*type != JsonType::kString && types_.has(*type)));
    if (as_json) {
      out += value;
      return;
    }
    out += '"';
    append_json_escaped(held_, out);
    out += '"';
  }

 private:
  enum class Kind : std::uint8_t { kUnknown, kHeld, kString };

  // The first byte often tells already that it is no JSON of another type.
  void begin(char first, std::string& out) {
    const auto may_be = [this](JsonType type) { return types_.has(type); };
    bool other = !may_be(JsonType::kString);
    if (first == '{') other |= may_be(JsonType::kObject);
    if (first == '[') other |= may_be(JsonType::kArray);
    if (first == 't' || first == 'f') other |= may_be(JsonType::kBoolean);
    if (first == 'n') other |= may_be(JsonType::kNull);
    if (first == '-' || (first >= '0' && first <= '9')) {
      other |= may_be(JsonType::kInteger) || may_be(JsonType::kNumber);
    }
    kind_ = other ? Kind::kHeld : Kind::kString;
    if (kind_ == Kind::kString) out += '"';
  }

  JsonTypes types_;
  Kind kind_ = Kind::kUnknown;
  std::string held_;
};

class GlmCalls final : public ToolCallParser {
 public:
  void open() override {
    place_ = Place::kName;
    header_ = {};
    parameters_ = nullptr;
    keys_.clear();
    key_.clear();
    between_.clear();
  }

  Step text(std::string_view& text, OutputSink& sink) override {
    if (place_ == Place::kBetween) return text_between(text, sink);
    const std::string_view taken = std::exchange(text, {});
    switch (place_) {
      case Place::kName:
        if (header_.append(taken)) return Step::kMore;
        sink.text(header_.raw());
        return Step::kEnded;
      case Place::kKey:
        key_ += taken;
        return Step::kMore;
      case Place::kValue: {
        std::string json;
        value_.append(taken, json);
        sink.arguments(json);
        return Step::kMore;
      }
      case Place::kBetween:
      case Place::kAfterKey:
      case Place::kIgnoredValue:
        return Step::kMore;
    }
    return Step::kMore;
  }

  Step marker(const MarkerSpelling& marker, OutputSink& sink) override {
    switch (place_) {
      case Place::kName:
        return after_name(marker, sink);
      case Place::kValue:
      case Place::kIgnoredValue:
        if (marker.marker == Marker::kValueEnd) {
          end_value(sink);
        } else {  // Nothing else ends a value: a file about tool calls must be possible to write.
          std::string_view spelled = marker.text;
          text(spelled, sink);
        }
        return Step::kMore;
      case Place::kBetween:
      case Place::kKey:
      case Place::kAfterKey:
        break;
    }
    switch (marker.marker) {
      case Marker::kKeyBegin:
        place_ = Place::kKey;
        key_.clear();
        between_.clear();
        return Step::kMore;
      case Marker::kKeyEnd:
        if (place_ == Place::kKey) place_ = Place::kAfterKey;
        return Step::kMore;
      case Marker::kValueBegin:
        if (place_ != Place::kBetween) begin_value(sink);
        return Step::kMore;
      case Marker::kCallEnd:
        end_call(sink);
        return Step::kEnded;
      case Marker::kValueEnd:
        return Step::kMore;
      default:  // The call's own end was left out.
        end_call(sink);
        sink.text(between_);
        return Step::kAgain;
    }
  }

  // Whether more arguments were to come only the model knows.
  void finish(OutputSink& sink, Ending ending) override {
    if (ending != Ending::kByItself) return;
    if (place_ == Place::kName) {
      if (!sink.accepts_declared(header_.value())) return;
      sink.begin_call({}, header_.value());
      end_call(sink);
    } else if (place_ == Place::kBetween) {
      end_call(sink);
    }
  }

 private:
  enum class Place : std::uint8_t { kName, kBetween, kKey, kAfterKey, kValue, kIgnoredValue };

  // White space belongs to the call, unless text follows: then the call's own end was left out.
  Step text_between(std::string_view& text, OutputSink& sink) {
    std::size_t white = 0;
    while (white < text.size() && is_white(text[white])) ++white;
    between_ += text.substr(0, white);
    text.remove_prefix(white);
    if (text.empty()) return Step::kMore;
    end_call(sink);
    sink.text(between_);
    return Step::kEnded;
  }

  Step after_name(const MarkerSpelling& marker, OutputSink& sink) {
    const std::string_view name = header_.value();
    const bool known_next = marker.marker == Marker::kKeyBegin || marker.marker == Marker::kCallEnd;
    if (!known_next || !sink.accepts(name)) {
      sink.text(header_.raw());
      return Step::kAgain;
    }
    parameters_ = sink.parameters(name);
    sink.begin_call({}, name);
    if (marker.marker == Marker::kCallEnd) {
      end_call(sink);
      return Step::kEnded;
    }
    place_ = Place::kKey;
    return Step::kMore;
  }

  // Of an argument that comes twice the first one counts: it has been sent when the second one comes, and JSON with a
  // name twice means different things to different readers.
  void begin_value(OutputSink& sink) {
    const std::string key(trimmed(key_));
    if (!keys_.insert(key).second) {
      place_ = Place::kIgnoredValue;
      return;
    }
    std::string json = keys_.size() == 1 ? "{\"" : ", \"";
    append_json_escaped(key, json);
    json += "\": ";
    sink.arguments(json);
    value_ = GlmValue(argument_types(parameters_, key));
    place_ = Place::kValue;
  }

  void end_value(OutputSink& sink) {
    if (place_ == Place::kValue) {
      std::string json;
      value_.end(json);
      sink.arguments(json);
    }
    place_ = Place::kBetween;
  }

  // A key without a value is left out, and then something is missing.
  void end_call(OutputSink& sink) {
    sink.arguments(keys_.empty() ? "{}" : "}");
    if (place_ == Place::kName || place_ == Place::kBetween) sink.complete_call();
  }

  Place place_ = Place::kName;
  CallHeader header_;
  const boost::json::object* parameters_ = nullptr;
  std::unordered_set<std::string> keys_;  // Of this call, so far.
  std::string key_;
  std::string between_;  // The white space since the last value.
  GlmValue value_{JsonTypes::any()};
};

}  // namespace

std::unique_ptr<ToolCallParser> make_glm_calls() { return std::make_unique<GlmCalls>(); }

}  // namespace tessera::text
