// What people expect of a command-line tool: help where they look for it, options by variables and
// a file, arguments without dashes, completions, a manual page, and errors that say what was meant.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <regex>
#include <set>
#include <tuple>

#include "tests/tools/cli.h"
#include "tests/tools/tiny_model.h"

namespace loopspec::test {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

Words CommandNames() {
  return {"generate",  "chat",     "serve",   "batch",  "bench",      "experiment",
          "calibrate", "simulate", "inspect", "logits", "tokenize",   "detokenize",
          "template",  "trace",    "synth",   "demo",   "completion", "man"};
}

// What a shell command prints, with its exit code.
std::pair<int, std::string> Shell(const std::string& command) {
  std::FILE* pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  std::string out;
  char block[4096];
  for (size_t count; (count = std::fread(block, 1, sizeof(block), pipe)) > 0;)
    out.append(block, count);
  return {pclose(pipe), out};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- help

TEST(Conventions, HelpWhereverItIsLookedFor) {
  const std::string top = Call({"--help"}).out;
  EXPECT_EQ(Call({"help"}).out, top);
  EXPECT_EQ(Call({"help"}).code, 0);
  for (const std::string& command : CommandNames()) {
    SCOPED_TRACE(command);
    EXPECT_TRUE(Has(top, "  " + command + " "));
    const RunResult asked = Call({"help", command});
    EXPECT_EQ(asked.code, 0);
    EXPECT_EQ(asked.out, Call({command, "--help"}).out);
  }
  EXPECT_EQ(Call({"trace", "--steps", "x", "--help"}).out, Call({"trace", "--help"}).out);
  EXPECT_EQ(Call({"help", "experiment", "run"}).out, Call({"experiment", "run", "--help"}).out);
  ExpectRefusal({"help", "nothing"}, {"unknown command nothing"});
}

// The layout is ours, whatever the parser's version would make of it.
TEST(Conventions, HelpHasOneLayout) {
  EXPECT_EQ(Call({"experiment", "--help"}).out,
            "Repeat the paper's tables and figures on a model\n"
            "Usage: loopspec experiment [OPTIONS] SUBCOMMAND\n\n"
            "Options:\n"
            "  -h,--help                       Print this help message and exit\n\n"
            "Subcommands:\n"
            "  list                            List the declared experiments\n"
            "  run                             Run experiments; a second start goes on where the "
            "first ended\n"
            "  report                          Make one page of all records in a folder, beside "
            "the paper's figures\n");
  const std::string trace = Call({"trace", "--help"}).out;
  EXPECT_TRUE(Has(trace, "\nUsage: loopspec trace [OPTIONS] FILE\n\nPositionals:\n")) << trace;
  EXPECT_TRUE(Has(trace, "\n  -o,--svg TEXT                   Picture")) << trace;
  const std::string run = Call({"experiment", "run", "--help"}).out;
  EXPECT_TRUE(Has(run, "Usage: loopspec experiment run [OPTIONS] NAME...\n")) << run;
  EXPECT_TRUE(Has(run, "\n  -n,--max-tokens N [0]           Maximum")) << run;
  EXPECT_TRUE(
      Has(run, "\n  -o,--output TEXT [loopspec-results]\n" + std::string(34, ' ') + "Folder"))
      << run;
  EXPECT_TRUE(Has(run, "\n\nModel:\n  -m,--model DIR REQUIRED         Folder")) << run;
  EXPECT_TRUE(Has(run, "\n\nExamples:\n  loopspec experiment run demo")) << run;
}

// A sentence begins with a capital letter, a number, or the name of a value; and speaks of maximum
// tokens, not of "most tokens to decode".
TEST(Conventions, HelpIsPlainSentences) {
  for (std::string command : CommandNames()) {
    Words words = {command, "--help"};
    if (command == "experiment") words = {command, "run", "--help"};
    const std::string help = Call(words).out;
    EXPECT_TRUE(Has(help, "Usage: loopspec " + command)) << help;
    EXPECT_FALSE(Has(help, "Most tokens")) << command;
    EXPECT_FALSE(Has(help, "LOOPSPEC_") && command != "serve") << command << "\n" << help;
    const std::regex option("\n  (-[^ ][^\n]*?|[A-Z]+ [^\n]*?)  +([a-z][a-z ]+)");
    for (std::sregex_iterator at(help.begin(), help.end(), option), end; at != end; ++at) {
      const std::string text = (*at)[2];
      static const std::set<std::string> kValues = {"input", "loopspec", "cascade",
                                                    "ar",    "bash",     "key"};
      EXPECT_TRUE(kValues.contains(text.substr(0, text.find(' ')))) << command << ": " << at->str();
    }
  }
}

// ---- arguments without dashes

TEST(Conventions, ModelAndPromptWithoutDashes) {
  const std::string model = OuroDemo(), prompt = "Once upon a time";
  const Words tail = {"-n", "8", "--threads", "1", "--json"};
  const auto text = [&](Words words) {
    words.insert(words.begin(), "generate");
    words.insert(words.end(), tail.begin(), tail.end());
    const RunResult result = Call(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.json().value("text", "");
  };
  const std::string expected = text({"--model", model, "--prompt", prompt});
  EXPECT_EQ(text({model, prompt}), expected);
  EXPECT_EQ(text({model, "--prompt", prompt}), expected);
  EXPECT_EQ(text({"--model", model, prompt}), expected);
  EXPECT_EQ(text({prompt, "--model", model}), expected);
  EXPECT_EQ(text({prompt, "-m", model}), expected);
  EXPECT_EQ(text({"--seed=3", model, prompt}), expected);
  const RunResult inspected = Call({"inspect", model, "--json"});
  EXPECT_EQ(inspected.json().at("family"), "ouro");
  EXPECT_EQ(Call({"tokenize", model, prompt}).out, Call({"tokenize", "-m", model, prompt}).out);
  EXPECT_EQ(Call({"tokenize", prompt, "-m", model}).out,
            Call({"tokenize", "-m", model, prompt}).out);
  RunOptions piped;
  piped.input = prompt + "\n";
  const RunResult read =
      Call({"generate", model, "-", "-n", "8", "--threads", "1", "--json"}, piped);
  EXPECT_EQ(read.json().at("text"), expected);
  ExpectRefusal({"generate", model}, {"needs one prompt, found none"});
  ExpectRefusal({"generate", model, prompt, "-p", "x"}, {"needs one prompt, found 2"});
  ExpectRefusal({"inspect"}, {"--model is required"});
}

TEST(Conventions, WordsInEveryForm) {
  const auto run = [](Words words) {
    words.insert(words.begin(), {"generate", "-m", OuroDemo(), "--threads", "1"});
    const RunResult result = Call(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string expected = run({"-p", "Once", "-n", "4", "--json=false"});
  EXPECT_FALSE(expected.empty());
  for (const Words& words :
       {Words{"-pOnce", "-n4"}, Words{"--prompt=Once", "--max-tokens=4"},
        Words{"-n", "4", "--", "Once"}, Words{"--presence-penalty", "-0", "-n4", "Once"},
        Words{"--stop-token", "1", "--stop-token=3", "-n", "4", "-p", "Once"},
        Words{"-n4", "--stop", "zebra", "Once"}})
    EXPECT_EQ(run(words), expected);
  ExpectRefusal({"generate", "--help=1"}, {"--model is required"});
  ExpectRefusal({"tokenize", "-m", OuroDemo(), "a", "-z"}, {"unknown option -z (see"});
}

// ---- variables and a file

TEST(Settings, VariablesAndAFileGiveOptions) {
  const Scratch scratch;
  const auto tokens = [](const RunOptions& options, const Words& more = {}) {
    Words words = {"generate", "-p", "Once", "--json", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const RunResult result = Call(words, options);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? static_cast<int>(Ids(result.json()).size()) : -1;
  };
  RunOptions variables;
  variables.environment = {{"LOOPSPEC_MODEL", OuroDemo()},
                           {"LOOPSPEC_MAX_TOKENS", "5"},
                           {"LOOPSPEC_PORT", "no number, and not an option of this command"}};
  EXPECT_EQ(tokens(variables), 5);
  EXPECT_EQ(tokens(variables, {"-n", "3"}), 3) << "the command line comes first";
  for (const auto& [value, shown] :
       {std::pair{"true", true}, {"YES", true}, {"1", true}, {"false", false}, {"0", false}}) {
    RunOptions flag = variables;
    flag.environment.push_back({"LOOPSPEC_JSON", value});
    const RunResult result = Call({"generate", "-p", "Once", "--threads", "1"}, flag);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out.starts_with("{\"text\""), shown) << value << ": " << result.out;
  }

  const std::string file =
      scratch.Write("config", "# a comment\nmodel = " + OuroDemo() +
                                  "\nmax-tokens = 7\n\n[chat]\nmax-tokens = 1\n[generate]\n"
                                  "ignore-eos = true\nseed = \"4\"\n");
  RunOptions configured;
  configured.environment = {{"LOOPSPEC_CONFIG", file}};
  EXPECT_EQ(tokens(configured), 7);
  configured.environment.push_back({"LOOPSPEC_MAX_TOKENS", "5"});
  EXPECT_EQ(tokens(configured), 5) << "the environment comes before the file";
  scratch.Write("config", "max-tokens = 7\n[generate]\nmax-tokens = 2\nmodel=" + OuroDemo() + "\n");
  configured.environment.pop_back();
  EXPECT_EQ(tokens(configured), 2) << "what is for the command comes before what is for all";
  // Where it lies unless told.
  scratch.Write("home/.config/loopspec/config", "max-tokens = 6\nmodel = " + OuroDemo() + "\n");
  RunOptions home;
  home.environment = {{"HOME", scratch / "home"}};
  EXPECT_EQ(tokens(home), 6);
  home.environment = {{"XDG_CONFIG_HOME", scratch / "home/.config"}};
  EXPECT_EQ(tokens(home), 6);
}

TEST(Settings, MistakesAreNamed) {
  const Scratch scratch;
  const Words generate = {"generate", "-m", OuroDemo(), "-p", "a"};
  const auto refuses = [&](const std::string& text, const Words& words) {
    RunOptions options;
    options.environment = {{"LOOPSPEC_CONFIG", scratch.Write("config", text)}};
    ExpectRefusal(generate, words, options);
  };
  refuses("thread = 2\n", {"config, line 1", "thread is no option of any command"});
  refuses("[generate]\nport = 2\n", {"line 2", "port is no option of loopspec generate"});
  refuses("[nothing]\n", {"line 1", "no command nothing"});
  refuses("\nthreads\n", {"line 2", "expected OPTION = VALUE, found threads"});
  refuses("threads =\n", {"line 1", "threads has no value"});
  refuses("# x\nthreads = many\n", {"--threads many: not a whole number", "in", "config, line 2"});
  RunOptions variable;
  variable.environment = {{"LOOPSPEC_THREADS", "many"}};
  ExpectRefusal(generate, {"--threads many: not a whole number", "in LOOPSPEC_THREADS"}, variable);
  for (const auto& [name, value, message] :
       {std::tuple{"MAX_TOKENS", "0", "--max-tokens 0: expected 1 to"},
        {"COMPUTE", "f16", "--compute f16: expected auto, f32 or bf16"},
        {"STOP_TOKEN", "x", "--stop-token x: not a whole number"},
        {"SEED", "1.5", "--seed 1.5: not a whole number"},
        {"JSON", "maybe", "--json maybe: expected true or false"}}) {
    const std::string whole = std::string("LOOPSPEC_") + name;
    variable.environment = {{whole, value}};
    ExpectRefusal(generate, {message, " in " + whole}, variable);
  }
  variable.environment = {{"LOOPSPEC_CONFIG", scratch / "missing"}};
  ExpectRefusal(generate, {"missing"}, variable);
}

// ---- completions, manual page

TEST(Conventions, CompletionsKnowEveryOption) {
  const Scratch scratch;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = Call({"completion", shell}).out;
    for (const std::string& command : CommandNames()) EXPECT_TRUE(Has(script, command)) << shell;
    for (const char* word : {"max-tokens", "loopspec ar lookup", "report"})
      EXPECT_TRUE(Has(script, word)) << shell << " " << word;
    const std::string file = scratch.Write(shell, script);
    if (Shell("command -v " + shell).first != 0) continue;
    const auto [code, out] = Shell(shell + " -n " + file);
    EXPECT_EQ(code, 0) << shell << ": " << out;
    EXPECT_EQ(out, "");
  }
  ExpectRefusal({"completion", "csh"}, {"SHELL csh: expected bash, zsh or fish"});
  // As bash asks: the words typed so far, the last one unfinished.
  const auto complete = [&](const std::string& words) {
    return Shell("bash -c 'source " + (scratch / "bash") + "; COMP_WORDS=(" + words +
                 "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _loopspec; echo ${COMPREPLY[@]}'")
        .second;
  };
  EXPECT_EQ(complete("loopspec gen"), "generate\n");
  EXPECT_EQ(complete("loopspec generate --max-to"), "--max-tokens\n");
  EXPECT_EQ(complete("loopspec generate --decode \"\""), "loopspec ar lookup\n");
  EXPECT_EQ(complete("loopspec serve --p"), "--pull --prefix-cache --port\n");
  EXPECT_EQ(complete("loopspec experiment re"), "report\n");
  EXPECT_EQ(complete("loopspec experiment run --li"), "--limit\n");
  EXPECT_EQ(complete("loopspec generate --model models/ou"), "\n") << "files are the shell's";
  EXPECT_EQ(complete("loopspec generate --device cu"), "cuda cuda:0\n");
  EXPECT_EQ(complete("loopspec quantize --to \"\""), "int8 int4\n");
  EXPECT_EQ(complete("loopspec completion z"), "zsh\n");
  // Names of models in the cache, as `loopspec list --names` prints them.
  for (const char* name : {"org/one", "org/two"}) {
    const std::string folder = "models--org--" + std::string(name).substr(4);
    TinyModel::Ouro().Save(scratch, "hub/" + folder + "/snapshots/aaa111");
    scratch.Write("hub/" + folder + "/refs/main", "aaa111");
  }
  const std::string path = "export PATH=" + Binary().parent_path().string() +
                           ":$PATH HF_HUB_CACHE=" + (scratch / "hub") + "; ";
  EXPECT_EQ(Shell(path + "bash -c 'source " + (scratch / "bash") +
                  "; COMP_WORDS=(loopspec rm org/t); COMP_CWORD=2; _loopspec; echo "
                  "${COMPREPLY[@]}'")
                .second,
            "org/two\n");
}

TEST(Conventions, TheManualPageHasEveryCommand) {
  const Scratch scratch;
  const std::string page = Call({"man"}).out;
  for (const std::string& command : CommandNames())
    EXPECT_TRUE(Has(page, ".SS loopspec " + command + "\n")) << command;
  for (const char* word : {".TH LOOPSPEC 1", "\\-\\-max\\-tokens", "LOOPSPEC_MAX_TOKENS",
                           ".config/loopspec/config", "EXIT STATUS"})
    EXPECT_TRUE(Has(page, word)) << word;
  if (Shell("command -v groff").first != 0) return;
  const auto [code, out] =
      Shell("groff -ww -man -Tutf8 " + scratch.Write("loopspec.1", page) + " > /dev/null");
  EXPECT_EQ(code, 0);
  EXPECT_EQ(out, "");
}

// ---- mistakes

TEST(Conventions, AMistypedWordGetsASuggestion) {
  const Words base = {"generate", "-m", OuroDemo(), "-p", "a"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  ExpectRefusal(with({"--devic", "cpu"}), {"unknown option --devic, did you mean --device?"});
  ExpectRefusal(with({"--max_tokens=5"}),
                {"unknown option --max_tokens, did you mean --max-tokens?"});
  ExpectRefusal({"serve", "-m", OuroDemo(), "--prot", "1"}, {"did you mean --port?"});
  ExpectRefusal(with({"--bogus"}), {"unknown option --bogus (see"});
  ExpectRefusal({"generat"}, {"unknown command generat", "did you mean generate?"});
}

TEST(Conventions, AMissingFolderIsNoDownload) {
  RunOptions here;
  here.folder = LOOPSPEC_SOURCE_DIR;
  ExpectRefusal({"inspect", "models/nope"},
                {"--model is models/nope, where there is no such folder", "models/ouro-demo"},
                here);
  const RunResult result = Call({"inspect", "models/nope"}, here);
  EXPECT_FALSE(Has(result.err, "hf download")) << result.err;
}

TEST(Conventions, ARevisionIsLookedUpInTheCache) {
  const Scratch scratch;
  const std::string repository = "hub/models--org--tiny/";
  for (const auto& [commit, dimension] : {std::pair{"aaa111", 1}, {"bbb222", 2}, {"bbb333", 3}}) {
    TinyModel tiny = TinyModel::Ouro();
    tiny.config["total_ut_steps"] = dimension;
    tiny.Save(scratch, repository + "snapshots/" + commit);
  }
  scratch.Write(repository + "refs/main", "aaa111");
  scratch.Write(repository + "refs/v2", "bbb222");
  scratch.Write(repository + "refs/pr/7", "bbb333\n");
  RunOptions cache;
  cache.environment = {{"HF_HUB_CACHE", scratch / "hub"}};
  const auto recurrence = [&](const std::string& name) {
    return Call({"inspect", name, "--json"}, cache).json().value("recurrence", 0);
  };
  EXPECT_EQ(recurrence("org/tiny"), 1);
  EXPECT_EQ(recurrence("org/tiny@main"), 1);
  EXPECT_EQ(recurrence("org/tiny@v2"), 2);
  EXPECT_EQ(recurrence("org/tiny@pr/7"), 3);
  EXPECT_EQ(recurrence("org/tiny@bbb222"), 2);
  EXPECT_EQ(recurrence("org/tiny@aaa"), 1);
  ExpectRefusal({"inspect", "org/tiny@bbb"}, {"bbb", "expected one commit"}, cache);
  ExpectRefusal({"inspect", "org/tiny@v3"}, {"hf download org/tiny --revision v3"}, cache);
  ExpectRefusal({"inspect", "org/tiny@../../snapshots"}, {"no such folder"}, cache);
}

// ---- the first minute: an installed model, from any folder

TEST(DemoModel, IsThereFromAnyFolder) {
  const Scratch scratch;
  RunOptions anywhere;
  anywhere.folder = scratch.path().string();
  const RunResult demo = Call({"demo", "--threads", "1"}, anywhere);
  EXPECT_EQ(demo.code, 0) << demo.err;
  EXPECT_TRUE(Has(demo.out, "ouro-demo: ")) << demo.out;
  EXPECT_TRUE(Has(demo.out, "the same text from both: yes")) << demo.out;
  anywhere.input = "Tell me a story about a dog.\n";
  const Words chat = {"chat", "-n", "8", "--threads", "1"};
  const RunResult talk = Call(chat, anywhere);
  EXPECT_EQ(talk.code, 0) << talk.err;
  EXPECT_EQ(talk.out, Call({"chat", OuroDemo(), "-n", "8", "--threads", "1"}, anywhere).out);
  EXPECT_EQ(Call({"run", "ouro-demo", "-n", "8", "--threads", "1"}, anywhere).out, talk.out);
  // A folder of that name in the folder where one is comes first.
  TinyModel::Ouro().Save(scratch, "ouro-demo");
  EXPECT_EQ(Call({"inspect", "ouro-demo", "--json"}, anywhere).json().at("vocab"), 3);
}

// As packages lay it out: the program in bin, the model in share/loopspec/models.
TEST(DemoModel, LiesBesideTheProgramOrInDataFolders) {
  const Scratch scratch;
  fs::create_directories(scratch.path() / "usr/bin");
  fs::copy_file(Binary(), scratch.path() / "usr/bin/loopspec");
  const std::string installed = scratch / "usr/bin/loopspec";
  const auto inspect = [&](const std::string& variables) {
    return Shell("cd / && env -i HOME=" + scratch.path().string() + " " + variables + " " +
                 installed + " inspect ouro-demo --json");
  };
  const auto [missing, why] = inspect("XDG_DATA_DIRS=/nowhere");
  EXPECT_NE(missing, 0);
  EXPECT_TRUE(Has(why, "the package loopspec-demo brings ouro-demo")) << why;
  TinyModel tiny = TinyModel::Ouro();
  tiny.Save(scratch, "data/loopspec/models/ouro-demo");
  EXPECT_EQ(inspect("XDG_DATA_DIRS=/nowhere:" + (scratch / "data")).first, 0);
  EXPECT_EQ(inspect("XDG_DATA_DIRS=/nowhere XDG_DATA_HOME=" + (scratch / "data")).first, 0);
  tiny.Save(scratch, "usr/share/loopspec/models/ouro-demo");
  const auto [found, out] = inspect("XDG_DATA_DIRS=/nowhere");
  EXPECT_EQ(found, 0) << out;
}

TEST(DemoModel, ThePathOfACloneIsNoNameOfTheHub) {
  const Scratch scratch;
  RunOptions elsewhere;
  elsewhere.folder = scratch.path().string();
  ExpectRefusal({"inspect", "models/ouro-demo"}, {"expected ouro-demo, which is installed"},
                elsewhere);
  const RunResult result = Call({"inspect", "models/ouro-demo"}, elsewhere);
  EXPECT_FALSE(Has(result.err, "pull")) << result.err;
}

TEST(Settings, ADefaultModelLeavesTheFirstArgumentToThePrompt) {
  const Scratch scratch;
  RunOptions variable;
  variable.environment = {{"LOOPSPEC_MODEL", OuroDemo()}};
  RunOptions file;
  file.environment = {
      {"LOOPSPEC_CONFIG", scratch.Write("config", "model = ouro-demo\nmax_tokens = 8\n")}};
  const Words tail = {"-n", "8", "--threads", "1", "--json"};
  const auto text = [&](Words words, const RunOptions& options) {
    words.insert(words.begin(), "generate");
    words.insert(words.end(), tail.begin(), tail.end());
    const RunResult result = Call(words, options);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.json().value("text", "");
  };
  const std::string prompt = "Once upon a time";
  const std::string expected = text({OuroDemo(), prompt}, {});
  for (const RunOptions& options : {variable, file}) {
    EXPECT_EQ(text({prompt}, options), expected);
    EXPECT_EQ(text({OuroDemo(), prompt}, options), expected) << "a model may still be named";
    EXPECT_EQ(text({OuroDemo(), "-p", prompt}, options), expected);
    EXPECT_EQ(text({"ouro-demo", "-p", prompt}, options), expected);
  }
  EXPECT_EQ(Call({"tokenize", prompt}, variable).out, Call({"tokenize", OuroDemo(), prompt}).out);
  ExpectRefusal({"generate"}, {"needs one prompt, found none"}, variable);
}

// ---- habits from other programs

TEST(Conventions, NamesThatOtherProgramsUse) {
  const auto text = [](Words words) {
    words.insert(words.begin(), {"generate", OuroDemo(), "Once", "--threads", "1", "--seed", "2"});
    const RunResult result = Call(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(text({"--temp", "1.5", "--repeat-penalty=1.2", "--n-predict", "6"}),
            text({"--temperature", "1.5", "--repetition-penalty", "1.2", "-n", "6"}));
  EXPECT_FALSE(Has(Call({"help", "generate"}).out, "--n-predict")) << "read, but not listed";
  EXPECT_EQ(Call({"ls"}).code, Call({"list"}).code);
  EXPECT_EQ(Call({"help", "run"}).out, Call({"help", "chat"}).out);
  ExpectRefusal({"ps"}, {"unknown command ps: nothing runs in the background", "loopspec list"});
  const Words base = {"generate", OuroDemo(), "a"};
  ExpectRefusal({"generate", OuroDemo(), "a", "-c", "4096"}, {"unknown option -c: the context"});
  ExpectRefusal({"generate", OuroDemo(), "a", "-ngl", "99"}, {"--device cuda"});
}

TEST(Conventions, SuggestionsMakeSense) {
  const auto said = [](const Words& words) {
    const RunResult result = Call(words);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_FALSE(Has(said({"tun"}), "mean man")) << said({"tun"});
  EXPECT_TRUE(Has(said({"gen"}), "did you mean generate?"));
  EXPECT_FALSE(Has(said({"generate", OuroDemo(), "a", "--beam", "2"}), "did you mean"));
  EXPECT_TRUE(Has(said({"generate", OuroDemo(), "a", "--tempe", "2"}), "mean --temperature?"));
  EXPECT_TRUE(Has(said({"generate", OuroDemo(), "hi", "there"}),
                  "a text of several words stands in quotes, \"hi there\""));
  // Names of other programs are known words too.
  EXPECT_TRUE(Has(said({"runn"}), "did you mean run?")) << said({"runn"});
  EXPECT_TRUE(Has(said({"generate", OuroDemo(), "a", "--tmp", "2"}), "mean --temperature?"));
  // An option is no mistyped command.
  EXPECT_TRUE(Has(said({"--temp", "1"}), "no command before --temp, expected one of generate"));
  EXPECT_FALSE(Has(said({"--temp", "1"}), "did you mean")) << said({"--temp", "1"});
}

// The first words of a text stand where a model does.
TEST(Conventions, ATextThatIsTakenForTheModelIsNamed) {
  RunOptions variable;
  variable.environment = {{"LOOPSPEC_MODEL", OuroDemo()}};
  ExpectRefusal({"generate", "Once", "upon", "a", "time"}, {"in quotes, \"Once upon a time\""},
                variable);
  const std::string text = "Once upon a time";
  for (const std::string command : {"generate", "logits", "template", "tokenize"}) {
    ExpectRefusal({command, text},
                  {command + " needs one", "\"Once upon a time\" stands where the model does"});
    EXPECT_FALSE(Has(Call({command, OuroDemo()}).err, "stands where")) << command;
  }
}

TEST(Conventions, TextsWithoutDashesForEveryCommandThatReadsOne) {
  const Scratch scratch;
  const std::string one = scratch / "one.json", other = scratch / "other.json";
  ASSERT_EQ(Call({"logits", OuroDemo(), "Once upon", "--lens", one}).code, 0);
  ASSERT_EQ(Call({"logits", "-m", OuroDemo(), "-p", "Once upon", "--lens", other}).code, 0);
  EXPECT_EQ(Slurp(one), Slurp(other));
  const std::string messages =
      scratch.Write("messages.json", R"([{"role": "user", "content": "Hello there"}])");
  const RunResult rendered = Call({"template", OuroDemo(), "Hello there"});
  EXPECT_EQ(rendered.code, 0) << rendered.err;
  EXPECT_EQ(rendered.out, Call({"template", OuroDemo(), "--messages", messages}).out);
  ExpectRefusal({"template", OuroDemo()}, {"needs one conversation"});
}

TEST(Conventions, TraceDrawsInTheTerminal) {
  const Scratch scratch;
  const std::string trace = scratch / "trace.json";
  ASSERT_EQ(Call({"generate", OuroDemo(), "Once upon a time", "-n", "6", "--threads", "1",
                  "--trace", trace})
                .code,
            0);
  const RunResult drawn = Call({"trace", trace});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_TRUE(Has(drawn.out, "\" time\" |1234  then \",\"")) << drawn.out;
  EXPECT_FALSE(Has(drawn.out, "\033")) << "no escapes where there is no terminal";
  // A picture goes where every other command's output goes.
  for (const char* option : {"--svg", "-o", "--output"}) {
    const std::string picture = scratch / (std::string(option) + ".svg");
    EXPECT_EQ(Call({"trace", trace, option, picture}).code, 0) << option;
    EXPECT_TRUE(Slurp(picture).starts_with("<svg")) << option;
  }
}

// ---- the same words for the same things

TEST(Conventions, AFileOrPipeLosesItsLastLineBreak) {
  const Scratch scratch;
  const auto ids = [](const Words& prompt, const std::string& input) {
    RunOptions piped;
    piped.input = input;
    Words words = {"generate", "-m", OuroDemo(), "-n", "6", "--threads", "1", "--json"};
    words.insert(words.end(), prompt.begin(), prompt.end());
    const Json out = Call(words, piped).json();
    return std::pair(out.value("prompt_tokens", 0), out.value("token_ids", Json()));
  };
  const auto expected = ids({"-p", "Once upon a time"}, "");
  for (const std::string end : {"", "\n", "\r\n"})
    EXPECT_EQ(ids({"-f", "-"}, "Once upon a time" + end), expected);
  EXPECT_EQ(ids({"-f", scratch.Write("p.txt", "Once upon a time\n")}, ""), expected);
  EXPECT_NE(ids({"-f", "-"}, "Once upon a time\n\n").first, expected.first) << "one, not all";
}

TEST(Conventions, NamesOfInspectStandApartFromTheirValues) {
  for (const std::string& model : {OuroDemo(), RavenDemo()}) {
    const std::string out = Call({"inspect", model}).out;
    EXPECT_TRUE(std::regex_search(out, std::regex("one token, autoregressive  +[0-9]"))) << out;
  }
}

TEST(Conventions, OneDefaultLengthAndOneNameForIt) {
  for (const std::string command : {"generate", "bench"})
    EXPECT_TRUE(std::regex_search(Call({command, "--help"}).out, std::regex("default:[^;]*256")))
        << command;
  for (const std::string command :
       {"generate", "chat", "batch", "bench", "simulate", "calibrate"}) {
    EXPECT_TRUE(Has(Call({command, "--help"}).out, "-n,--max-tokens")) << command;
  }
  EXPECT_FALSE(Has(Call({"simulate", "--help"}).out, " --tokens"));
}

TEST(Conventions, BenchNeedsAModelAlone) {
  const RunResult result =
      Call({"bench", OuroDemo(), "-n", "8", "--repeat", "1", "--threads", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* word : {"ar", "loopspec", "4 prompts of bench's own"})
    EXPECT_TRUE(Has(result.out, word)) << word << "\n" << result.out;
  const Scratch scratch;
  const RunResult tiny = Call({"bench", TinyModel::Ouro().Save(scratch, "tiny"), "-n", "8",
                               "--repeat", "1", "--threads", "1"});
  EXPECT_EQ(tiny.code, 0) << tiny.err;
}

TEST(Conventions, AContextOf128NeedsNoOptions) {
  const Scratch scratch;
  const Words small = {"--set", "max_position_embeddings=128", "--threads", "1"};
  const auto run = [&](Words words) {
    words.insert(words.end(), small.begin(), small.end());
    const RunResult result = Call(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string out = run({"bench", OuroDemo(), "--repeat", "1", "--limit", "1"});
  EXPECT_TRUE(Has(out, "loopspec")) << out;
  run({"calibrate", OuroDemo(), "--prompt-tokens", "40", "--measure-prompts", "1", "--positions",
       "64", "--measure", "1", "--repeat", "1", "--view", "greedy", "--proposals", "1", "--force",
       "--output", scratch / "calibration"});
  // A number that was asked for is not changed in silence.
  ExpectRefusal(
      {"bench", OuroDemo(), "--limit", "1", "-n", "200", "--set", "max_position_embeddings=128"},
      {"the model's context is 128"});
}

// Eight tokens' worth of recurrences, for any R, in a picture that can be looked at.
TEST(Conventions, TraceScalesWithR) {
  const Scratch scratch;
  for (const auto& [model, steps] : {std::pair{OuroDemo(), 32}, {RavenDemo(), 256}}) {
    const std::string trace = scratch / "trace.json", svg = scratch / "trace.svg";
    ASSERT_EQ(Call({"generate", model, "Once upon a time", "-n", "24", "--decode", "ar",
                    "--threads", "1", "--trace", trace})
                  .code,
              0);
    ASSERT_EQ(Call({"trace", trace, "--svg", svg}).code, 0);
    const std::string drawn = Slurp(svg);
    std::smatch width;
    ASSERT_TRUE(std::regex_search(drawn, width, std::regex("width=\"([0-9]+)\"")));
    EXPECT_GT(std::stoi(width[1]), 1200) << model;
    EXPECT_LT(std::stoi(width[1]), 2000) << model;
    size_t boxes = 0;
    for (size_t at = 0; (at = drawn.find(" class=\"live", at)) != std::string::npos; ++at) ++boxes;
    for (size_t at = 0; (at = drawn.find(" class=\"final\"", at)) != std::string::npos; ++at)
      ++boxes;
    EXPECT_EQ(boxes, static_cast<size_t>(steps)) << "one box for each recurrence of one branch";
  }
}

}  // namespace
}  // namespace loopspec::test
