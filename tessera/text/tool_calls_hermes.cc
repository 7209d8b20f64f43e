// Hermes, which Qwen writes: <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>.
//
// The outer object is read strictly, since it tells a call from a text about calls; the arguments are passed on as they
// are written. A marker within a JSON string is data: a file about tool calls must be possible to write.
#include <string>
#include <utility>

#include "tessera/text/tool_calls.h"

namespace tessera::text {
namespace {

class HermesCalls final : public ToolCallParser {
 public:
  void open() override { call_ = Call(); }

  Step text(std::string_view& text, OutputSink& sink) override {
    while (!text.empty()) {
      if (call_.place == Place::kEnded) {
        if (!after_end(text)) return Step::kEnded;
        continue;
      }
      const std::size_t taken = take(text, sink);
      if (!call_.begun) call_.raw += text.substr(0, taken);
      text.remove_prefix(taken);
      if (call_.place == Place::kNoCall) {
        sink.text(std::exchange(call_.raw, {}));
        return Step::kEnded;
      }
    }
    return Step::kMore;
  }

  Step marker(const MarkerSpelling& marker, OutputSink& sink) override {
    if (in_string()) {
      const std::size_t raw_bytes = call_.raw.size();
      std::string_view spelled = marker.text;
      const Step step = text(spelled, sink);
      if (!call_.begun) call_.raw.resize(raw_bytes);  // If this turns out to be no call, it is a marker after all.
      call_.end_in_string |= marker.marker == Marker::kCallEnd;
      return step;
    }
    if (!call_.begun) {
      sink.text(call_.raw);
    } else {
      complete_without_end(sink);
    }
    return marker.marker == Marker::kCallEnd ? Step::kEnded : Step::kAgain;
  }

  void finish(OutputSink& sink, Ending ending) override {
    const bool named = call_.has_name && !call_.has_arguments && call_.place == Place::kComma;
    if (call_.begun) {
      complete_without_end(sink);
    } else if (named && ending == Ending::kByItself && sink.accepts_declared(call_.name)) {
      end_object(sink);
    } else if (call_.end_in_string) {
      sink.text(call_.raw);
    }
  }

 private:
  enum class Place : std::uint8_t {
    kStart,     // Before the object.
    kFirstKey,  // A key or the object's end.
    kNextKey,   // A key.
    kKey,       // In a key.
    kColon,
    kValue,            // Before a value.
    kName,             // In the name.
    kArguments,        // In the arguments, an object.
    kQuotedArguments,  // In the arguments, a string that holds one.
    kSkipped,          // In an object or array that means nothing here.
    kSkippedString,
    kScalar,  // In a number or word.
    kComma,   // A comma or the object's end.
    kEnded,   // After the object.
    kLost,    // The call has begun, but the rest of it is not JSON.
    kNoCall,
  };

  struct Call {
    Place place = Place::kStart;
    bool begun = false;  // Known to the sink.
    bool has_name = false;
    bool has_arguments = false;  // They began.
    bool arguments_ended = false;
    bool complete = false;
    bool end_in_string = false;  // </tool_call> came within a string.
    std::string raw;             // All of it, until it has begun.
    std::string key;
    std::string name;
    std::string scalar;
    std::string held_arguments;  // Written before the name.
    JsonStringDecoder string;
    JsonNesting nesting;
    TrimmedText quoted{TrimmedText::Leading::kDropWhite};
  };

  bool in_string() const {
    switch (call_.place) {
      case Place::kKey:
      case Place::kName:
      case Place::kQuotedArguments:
      case Place::kSkippedString:
        return true;
      case Place::kArguments:
      case Place::kSkipped:
        return call_.nesting.in_string();
      default:
        return false;
    }
  }

  // Takes from the front of `text` what belongs to one place.
  std::size_t take(std::string_view text, OutputSink& sink) {
    switch (call_.place) {
      case Place::kKey: {
        const std::size_t taken = call_.string.decode(text, call_.key);
        if (call_.string.ended()) call_.place = Place::kColon;
        return taken;
      }
      case Place::kName: {
        const std::size_t taken = call_.string.decode(text, call_.name);
        if (call_.string.ended()) {
          call_.has_name = true;
          call_.place = Place::kComma;
          if (call_.has_arguments) begin(sink);
        }
        return taken;
      }
      case Place::kArguments: {
        const std::size_t taken = call_.nesting.scan(text);
        add_arguments(text.substr(0, taken), sink);
        if (call_.nesting.complete()) end_arguments();
        return taken;
      }
      case Place::kQuotedArguments: {
        std::string decoded;
        std::string certain;
        const std::size_t taken = call_.string.decode(text, decoded);
        call_.quoted.write(decoded, certain);
        add_arguments(certain, sink);
        if (call_.string.ended()) {
          if (!call_.quoted.begun()) add_arguments("{}", sink);
          end_arguments();
        }
        return taken;
      }
      case Place::kSkipped: {
        const std::size_t taken = call_.nesting.scan(text);
        if (call_.nesting.complete()) call_.place = Place::kComma;
        return taken;
      }
      case Place::kSkippedString: {
        std::string ignored;
        const std::size_t taken = call_.string.decode(text, ignored);
        if (call_.string.ended()) call_.place = Place::kComma;
        return taken;
      }
      case Place::kScalar:
        return take_scalar(text);
      case Place::kLost:
        return text.size();
      default:
        if (!is_white(text.front())) take_structure(text.front(), sink);
        return 1;
    }
  }

  // A byte between strings and values.
  void take_structure(char byte, OutputSink& sink) {
    switch (call_.place) {
      case Place::kStart:
        if (byte != '{') return fail();
        call_.place = Place::kFirstKey;
        return;
      case Place::kFirstKey:
      case Place::kNextKey:
        if (byte == '}' && call_.place == Place::kFirstKey) return end_object(sink);
        if (byte != '"') return fail();
        call_.key.clear();
        call_.string = {};
        call_.place = Place::kKey;
        return;
      case Place::kColon:
        if (byte != ':') return fail();
        call_.place = Place::kValue;
        return;
      case Place::kValue:
        return begin_value(byte, sink);
      case Place::kComma:
        if (byte == '}') return end_object(sink);
        if (byte != ',') return fail();
        call_.place = Place::kNextKey;
        return;
      default:
        return;
    }
  }

  // Of a name or arguments that come twice the first count.
  void begin_value(char byte, OutputSink& sink) {
    const bool name = call_.key == "name" && !call_.has_name;
    const bool arguments = (call_.key == "arguments" || call_.key == "parameters") && !call_.has_arguments;
    call_.string = {};
    if (name) {
      if (byte != '"') return fail();
      call_.place = Place::kName;
      return;
    }
    if (byte == '"' || byte == '{') {
      call_.nesting = {};
      if (!arguments) {
        call_.place = byte == '"' ? Place::kSkippedString : Place::kSkipped;
        if (byte == '{') call_.nesting.scan("{");
        return;
      }
      call_.place = byte == '"' ? Place::kQuotedArguments : Place::kArguments;
      call_.has_arguments = true;
      if (call_.has_name) begin(sink);
      if (byte == '{') {
        call_.nesting.scan("{");
        add_arguments("{", sink);
      }
      return;
    }
    if (byte == '[') {
      if (arguments) return fail();
      call_.nesting = {};
      call_.nesting.scan("[");
      call_.place = Place::kSkipped;
      return;
    }
    call_.scalar = byte;
    call_.place = Place::kScalar;
  }

  // Up to what follows the number or word. Arguments may be null, which is none.
  std::size_t take_scalar(std::string_view text) {
    const std::size_t end = text.find_first_of(",} \t\n\r");
    call_.scalar += text.substr(0, end);
    if (end == std::string_view::npos) return text.size();
    const bool arguments = (call_.key == "arguments" || call_.key == "parameters") && !call_.has_arguments;
    call_.place = Place::kComma;
    if (arguments && call_.scalar != "null") fail();
    return end;
  }

  void fail() { call_.place = call_.begun ? Place::kLost : Place::kNoCall; }

  void begin(OutputSink& sink) {
    if (!sink.accepts(call_.name)) return fail();
    sink.begin_call({}, call_.name);
    call_.begun = true;
    call_.raw = {};
    sink.arguments(std::exchange(call_.held_arguments, {}));
  }

  void add_arguments(std::string_view text, OutputSink& sink) {
    if (call_.begun) {
      sink.arguments(text);
    } else {
      call_.held_arguments += text;
    }
  }

  void end_arguments() {
    call_.arguments_ended = true;
    call_.place = Place::kComma;
  }

  void end_object(OutputSink& sink) {
    if (!call_.begun && call_.has_name) begin(sink);
    if (!call_.begun) return fail();
    if (!call_.has_arguments) sink.arguments("{}");
    sink.complete_call();
    call_.complete = true;
    call_.place = Place::kEnded;
  }

  // The object's closing bracket, the end marker, or both, were left out.
  void complete_without_end(OutputSink& sink) {
    if (!call_.begun || call_.complete || !call_.arguments_ended) return;
    call_.complete = true;
    sink.complete_call();
  }

  // After the object: white space and brackets too many belong to the call, and so does another call. Anything else is
  // text, the end marker having been left out.
  bool after_end(std::string_view& text) {
    while (!text.empty() && (is_white(text.front()) || text.front() == '}')) text.remove_prefix(1);
    if (!text.empty() && text.front() != '{') return false;
    if (!text.empty()) call_ = Call();
    return true;
  }

  Call call_;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_hermes_calls() { return std::make_unique<HermesCalls>(); }

}  // namespace tessera::text
