// SPDX-License-Identifier: BSD-3-Clause
// What a file is, by its content: which inputs `mylos tokenize` refuses, guesses and leaves out.
#include "io/tokens/content_kind.hpp"

#include <sys/stat.h>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/tokens/corpus_reader.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"
#include "io/tokens/tokenizer.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using std::string_literals::operator""s;

class Corpus : public testing::Test {
 protected:
  fs::path file(const std::string& name) const { return scratch_.path() / name; }
  std::string path(const std::string& name) const { return file(name).string(); }

  /// The names of the inputs below the scratch directory, with their formats; or the error. Keeps the notes.
  std::vector<std::string> found(const std::vector<std::string>& places,
                                 std::optional<CorpusFormat> format = std::nullopt) {
    notes_.clear();
    std::vector<std::string> names;
    try {
      for (const CorpusInput& input :
           find_corpus(places, format, [&](const std::string& note) { notes_.push_back(note); })) {
        const char* mark = !input.format ? "?" : input.format == CorpusFormat::text ? "" : " (lines)";
        names.push_back(input.path.lexically_relative(scratch_.path()).string() + mark);
      }
    } catch (const Error& error) {
      return {fmt::format("{} {}", static_cast<int>(error.code()), error.what())};
    }
    return names;
  }

  /// The texts of the documents that `inputs` hold, read as a tokenizer of bytes does.
  static std::vector<std::string> documents(const std::vector<CorpusInput>& inputs) {
    const auto tokenizer = make_tokenizer("bytes");
    CorpusReader reader(inputs, "text", [&](std::string_view text) { return tokenizer->last_cut(text); });
    std::vector<std::string> texts;
    while (const auto block = reader.next()) {
      if (block->is_lines) {
        for_each_document(*block, "text",
                          [&](const std::string& text, std::int64_t) { texts.push_back(text); });
      } else {
        if (block->begins) texts.emplace_back();
        texts.back() += block->bytes;
      }
    }
    return texts;
  }

  ScratchDirectory scratch_;
  std::vector<std::string> notes_;
};

/// A name, the first bytes and the command that the message names.
struct Binary {
  const char* name;
  std::string bytes;
  const char* command;
};

const std::vector<Binary> binaries = {
    {"a.txt.gz", "\x1f\x8b\x08\0"s, "zcat PATH | mylos tokenize - --format text ..."},
    {"a.jsonl.gz", "\x1f\x8b\x08\0"s, "zcat PATH | mylos tokenize - --format jsonl ..."},
    {"a.zst", "\x28\xb5\x2f\xfd", "zstdcat PATH |"},
    {"a.pzst", "\x50\x2a\x4d\x18", "zstdcat PATH |"},
    {"a.xz", "\xfd\x37zXZ\0"s, "xzcat PATH |"},
    {"a.bz2", "BZh91AY&SY", "bzcat PATH |"},
    {"a.lz4", "\x04\x22\x4d\x18", "lz4cat PATH |"},
    {"a.zip", "PK\x03\x04", "unzip -p PATH |"},
    {"a.npz", "PK\x03\x04", "unzip -p PATH |"},
    {"a.7z", "7z\xbc\xaf\x27\x1c", "7z x -so PATH |"},
    {"a.tar", "name"s + std::string(253, '\0') + "ustar\0"s, "tar -xOf PATH |"},
    {"a.parquet", "PAR1\x15\x04",
     "read_parquet('PATH')) TO '/dev/stdout' (FORMAT json)\" | mylos tokenize - --format "
     "jsonl ..."},
    {"a.arrow", "ARROW1\0\0"s, "an Arrow file"},
    {"a.h5", "\x89HDF\r\n\x1a\n", "an HDF5 file"},
    {"a.npy", "\x93NUMPY", "a NumPy array"},
    {"a.pkl", "\x80\x04\x95", "a Python pickle"},
    {"a.safetensors", "\x40\0\0\0\0\0\0\0{\""s, "a safetensors file"},
    {"a.pdf", "%PDF-1.7\n", "pdftotext PATH - |"},
    {"a.so", "\x7f\x45LF\x02", "a program or library"},
    {"a.png", "\x89PNG\r\n\x1a\n", "an image"},
    {"a.jpg", "\xff\xd8\xff\xe0", "an image"},
    {"a.db", "SQLite format 3\0"s, "an SQLite database"},
    {"tokens.txt", "\x88\xd8\x34\x01"s, "token file"},
    {"a.tiktoken", "IQ== 0\nIg== 1\n", "merge ranks"},
    {"u16.txt", "\xff\xfe"s + "a\0b\0"s, "iconv -f UTF-16 -t UTF-8 PATH |"},
    {"u16be.txt", "\xfe\xff"s + "\0a\0b"s, "iconv -f UTF-16 -t UTF-8 PATH |"},
    {"u32.txt", "\xff\xfe\0\0a\0\0\0"s, "iconv -f UTF-32 -t UTF-8 PATH |"},
    {"unmarked16.txt", "a\0b\0\n\0"s, "iconv -f UTF-16LE -t UTF-8 PATH |"},
    {"unmarked16be.txt", "\0a\0b\0\n"s, "iconv -f UTF-16BE -t UTF-8 PATH |"},
    {"unmarked32.txt", "a\0\0\0b\0\0\0"s, "iconv -f UTF-32LE -t UTF-8 PATH |"},
    {"nul.txt", "text\0text"s, "binary data (it has NUL bytes)"},
    {"control.txt", "ab\x01\x02\x03\x04", "binary data (it has many control characters)"},
};

TEST_F(Corpus, WhatIsNotATextIsRefusedWithTheCommandThatConverts) {
  for (const Binary& binary : binaries) {
    SCOPED_TRACE(binary.name);
    spill(file(binary.name), binary.bytes);
    std::string command = binary.command;
    if (const std::size_t at = command.find("PATH"); at != std::string::npos)
      command.replace(at, 4, path(binary.name));
    const auto refused = found({path(binary.name)});
    ASSERT_EQ(refused.size(), 1U);
    EXPECT_THAT(refused[0], StartsWith("65 " + path(binary.name) + " is "))
        << "kind " << content_kind(binary.bytes).name;
    EXPECT_THAT(refused[0], HasSubstr(command));
    EXPECT_THAT(found({path(binary.name)}, CorpusFormat::text), ElementsAre(binary.name))
        << "the user insists";
    // As a stream, of which nothing is known before it is read.
    const std::vector<CorpusInput> stream = {{.path = file(binary.name), .format = CorpusFormat::text}};
    EXPECT_THROW(documents(stream), Error);
  }
}

TEST_F(Corpus, TextsAreTaken) {
  const std::pair<const char*, std::string> texts[] = {
      {"utf8.txt", "caf\u00e9 \u4e00 \U0001f600\n"},
      {"latin1.txt", "caf\xe9 na\xefve, d\xe9j\xe0 vu\n"},
      {"escapes.txt", "\x1b[1mbold\x1b[0m\f\v\b\x1a"},
      {"gguf.md", "GGUF is a format"},
      {"bracket.txt", "[Chapter 1]\n"},
      {"brace.txt", "{ sets }"},
  };
  for (const auto& [name, text] : texts) {
    spill(file(name), text);
    EXPECT_THAT(found({path(name)}), ElementsAre(name));
    EXPECT_THAT(documents(find_corpus({path(name)}, std::nullopt)), ElementsAre(text)) << name;
  }
}

TEST_F(Corpus, FormatsAreKnownByNameInAnyCaseThenByContent) {
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
  for (const char* name : {"a.jsonl", "a.JSONL", "a.ndjson", "a.NdJson"}) {
    spill(file(name), lines);
    EXPECT_THAT(found({path(name)}), ElementsAre(std::string(name) + " (lines)"));
    EXPECT_THAT(notes_, IsEmpty());
  }
  spill(file("lines"), "\xef\xbb\xbf\n " + lines);
  EXPECT_THAT(found({path("lines")}), ElementsAre("lines (lines)"));
  EXPECT_THAT(notes_,
              ElementsAre("read as JSON lines: " + path("lines") + "; --format text would read it as text"));
  for (const char* name : {"n.md", "n.rst", "n", "n.TXT"}) spill(file(name), "a text");
  EXPECT_THAT(found({path("n.md"), path("n.rst"), path("n"), path("n.TXT")}),
              ElementsAre("n.md", "n.rst", "n", "n.TXT"));
  EXPECT_THAT(notes_, ElementsAre(fmt::format(
                          "read as text: {}, {}, {}; --format jsonl would read them as JSON lines",
                          path("n.md"), path("n.rst"), path("n"))));
  spill(file("lines.txt"), lines);
  EXPECT_THAT(found({path("lines.txt")}), ElementsAre("lines.txt"));
  EXPECT_THAT(notes_,
              ElementsAre(HasSubstr("warning: " + path("lines.txt") + " is read as a text, but looks like")));
}

TEST_F(Corpus, JsonGetsAHint) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "--format jsonl reads it as JSON lines"},
      {"[{\"text\": \"a\"},\n {\"text\": \"b\"}]\n", "jq -c '.[]' "},
      {"[\n  {\n \"text\": \"a\"}]", "jq -c '.[]' "},
      {"[]", "jq -c '.[]' "},
      {"{\n  \"text\": \"a\"\n}\n", "jq -c . "},
  };
  for (const auto& [text, hint] : cases) {
    for (const char* name : {"a.json", "a.JSON"}) {
      spill(file(name), text);
      const auto refused = found({path(name)});
      ASSERT_EQ(refused.size(), 1U);
      EXPECT_THAT(refused[0], StartsWith("65 " + path(name) + " is ")) << text;
      EXPECT_THAT(refused[0], HasSubstr(hint)) << text;
      EXPECT_THAT(found({path(name)}, CorpusFormat::text), ElementsAre(name));
      EXPECT_THAT(found({path(name)}, CorpusFormat::json_lines), ElementsAre(std::string(name) + " (lines)"));
    }
  }
}

TEST_F(Corpus, AStreamIsRecognisedByWhatIsRead) {
  // A file without a format stands for a stream here: the reader sees its bytes only once.
  const auto read = [&](const std::string& bytes) {
    spill(file("stream"), bytes);
    return documents({{.path = file("stream"), .format = std::nullopt}});
  };
  EXPECT_THAT(read("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), ElementsAre("a", "b"));
  EXPECT_THAT(
      read("\xef\xbb\xbf{\"text\": \"a\", \"x\": NaN}\n\xef\xbb\xbf{\"text\": \"b\"}\n\xef\xbb\xbf\n"),
      ElementsAre("a", "b"));
  EXPECT_THAT(read("a text\n{}"), ElementsAre("a text\n{}"));
  EXPECT_THAT(read("\xef\xbb\xbf"s + "a text"), ElementsAre("a text"));
  EXPECT_THROW(read("\x1f\x8b\x08\0"s), Error);
  EXPECT_THROW(read("[{\"text\": \"a\"}]"), Error);
}

TEST_F(Corpus, AMarkIsSkippedInLongTextsAndLines) {
  const std::string text(3 * CorpusReader::block_bytes, 'a');
  spill(file("a.txt"), std::string(utf8_mark) + text);
  EXPECT_THAT(documents(find_corpus({path("a.txt")}, std::nullopt)), ElementsAre(text));
  const std::string document(2 * CorpusReader::most_line_bytes, 'a');
  spill(file("a.jsonl"),
        fmt::format("{0}{{\"text\": \"{1}\"}}\n{0}{{\"text\": \"{1}\"}}\n", utf8_mark, document));
  EXPECT_EQ(documents(find_corpus({path("a.jsonl")}, std::nullopt)), std::vector<std::string>(2, document));
}

TEST_F(Corpus, BlocksOfTextKeepCharactersWhole) {
  const auto tokenizer = make_tokenizer("bytes");
  for (const std::string& character : std::vector<std::string>{"a", "\u00e9", "\u4e00", "\U0001f600"}) {
    for (std::size_t cut = 0; cut <= character.size(); ++cut) {
      const std::string text = "x" + character.substr(0, cut);
      EXPECT_EQ(tokenizer->last_cut(text), cut == character.size() ? text.size() : 1U) << character << cut;
    }
  }
  EXPECT_EQ(tokenizer->last_cut("\x80\x80\x80\x80"), 4U) << "not UTF-8";
}

TEST_F(Corpus, AFolderSaysWhatItLeavesOut) {
  for (const char* folder : {"c", "c/sub", "c/.ipynb_checkpoints", "other"})
    fs::create_directory(file(folder));
  for (const char* name : {"c/B.TXT", "c/sub/a.txt", "c/.ipynb_checkpoints/x.txt", "c/.hidden.txt", "c/n.md",
                           "c/README", "other/o.txt"})
    spill(file(name), "a text");
  spill(file("c/l.NDJSON"), "{\"text\": \"a\"}");
  spill(file("c/z.txt.gz"), "\x1f\x8b\x08");
  fs::create_directory(file("c/vocab"));
  spill(file("c/vocab/merges.txt"), "#version: 0.2\n");
  fs::create_directory_symlink("../other", file("c/link"));
  fs::create_directory_symlink("..", file("c/sub/up"));  // a cycle
  fs::create_symlink("../B.TXT", file("c/sub/same.txt"));
  ASSERT_EQ(::mkfifo(file("c/pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(found({path("c")}),
              ElementsAre("c/B.TXT", "c/l.NDJSON (lines)", "c/link/o.txt", "c/sub/a.txt"));
  EXPECT_THAT(notes_,
              ElementsAre(path("c") + ": left out: 1 .gz, 1 .md, 2 hidden, 1 linked twice, 1 merge ranks, 1 "
                                      "not a regular file, 1 without an extension"));
  fs::create_symlink("nowhere", file("c/sub/dead.txt"));
  EXPECT_THAT(found({path("c")}),
              ElementsAre(StartsWith("74 " + path("c/sub/dead.txt") + " is a link to nowhere")));
  fs::remove(file("c/sub/dead.txt"));
  fs::create_symlink("nowhere", file("dead.txt"));
  EXPECT_THAT(found({path("dead.txt")}),
              ElementsAre(StartsWith("74 " + path("dead.txt") + " is a link to nowhere")));
  fs::create_directory(file("none"));
  spill(file("none/a.gz"), "x");
  EXPECT_THAT(found({path("none")}),
              ElementsAre("2 " + path("none") + " holds no .txt, .jsonl or .ndjson file; left out: 1 .gz"));
}

TEST_F(Corpus, WhatMylosWritesIsNeverInput) {
  spill(file("a.txt"), "a text");
  {
    TokenFileWriter writer(file("t.bin"));
    writer.append(std::vector<std::uint16_t>(5000, 65));
    writer.finish();
  }
  write_sidecar(file("t.bin"), {.tokenizer = {.name = "bytes", .ranks = ""},
                                .vocab = 257,
                                .tokens = 5000,
                                .content = "",
                                .documents = 1});
  spill(file("t_tokenize.json"), "{\"done\": true, \"settings\": {\"--shard-tokens\": \"5\"}}");
  spill(file("t.bin.lock"), "process 12 on host\n");
  spill(file("t.bin.tmp"), std::string(1024, '\0') + "A\0A\0"s);
  spill(file("u.bin.tmp"), "");
  fs::create_directory(file("run"));
  spill(file("run/resolved.deck"), "");
  spill(file("run/status.json"), "{}");
  EXPECT_THAT(found({path("*")}), ElementsAre("a.txt"));
  EXPECT_THAT(notes_, ElementsAre(path("*") +
                                  ": left out: 1 lock file, 1 progress file, 1 run directory, 1 sidecar, 1 "
                                  "token file, 2 unfinished files"));
  EXPECT_THAT(found({path("*")}, CorpusFormat::text), ElementsAre("a.txt"));
  EXPECT_THAT(found({scratch_.path().string()}), ElementsAre("a.txt"));
  for (const char* name : {"t.bin", "t.bin.json", "t_tokenize.json", "t.bin.lock", "t.bin.tmp"}) {
    EXPECT_THAT(found({path(name)}), ElementsAre(StartsWith("65 " + path(name) + " is a")));
    EXPECT_THAT(found({path("a.txt"), path(name)}), ElementsAre("a.txt"))
        << "as if a shell had named all files";
    EXPECT_THAT(notes_, ElementsAre(StartsWith("left out: 1 ")));
  }
  EXPECT_THAT(found({path("run/resolved.deck")}),
              ElementsAre(StartsWith("65 " + path("run/resolved.deck") + " is a run's file")));
  EXPECT_THAT(found({path("run/*")}), ElementsAre(HasSubstr("left out: 2 run's files")));
  spill(file("resolved.deck"), "a text");
  EXPECT_THAT(found({path("resolved.deck")}), ElementsAre("resolved.deck")) << "not in a run";
  fs::remove(file("resolved.deck"));
  fs::rename(file("t.bin"), file("t.txt"));
  EXPECT_THAT(found({scratch_.path().string()}), ElementsAre("a.txt")) << "whatever its name";
  EXPECT_THAT(found({path("t*")}), ElementsAre(StartsWith("2 no file that matches " + path("t*"))));
}

TEST(ContentKind, ValuesOfPythonsJsonArePassedOver) {
  const auto text_of = [](const std::string& line, std::size_t part) {
    JsonText json("text");
    std::string text;
    try {
      for (std::size_t at = 0; at < line.size(); at += part)
        json.take(std::string_view(line).substr(at, part), text);
      json.end();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return text;
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"a": NaN, "text": "x"})", "x"},
      {R"({"text": "x", "a": Infinity})", "x"},
      {R"({"a": [-Infinity, {"b": NaN}, -1], "text": "x"})", "x"},
      {R"({"a": Nan, "text": "x"})", "not JSON: 'n' is out of place"},
      {R"({"a": -NaN, "text": "x"})", "not JSON: 'N' is out of place"},
      {R"({"a": Inf})", "not JSON: '}' is out of place"},
      {R"({"text": NaN})", "\"text\" is not text"},
      {R"({"text": -Infinity})", "\"text\" is not text"},
  };
  for (const auto& [line, text] : cases) {
    for (std::size_t part = 1; part < 30; ++part) EXPECT_EQ(text_of(line, part), text) << line << " " << part;
  }
}

TEST(ContentKind, MalformedBytesAreFoundAnywhere) {
  const std::string good = "abc\u00e9\u4e00\U0001f600";
  for (std::size_t before = 0; before < 40; ++before) {
    const std::string text = std::string(before, 'a') + good;
    EXPECT_EQ(find_malformed(text, 0), text.size());
    EXPECT_EQ(find_malformed(text + "\xe9" + good, 0), text.size());
    EXPECT_EQ(find_malformed(text + "\0"s + good, 0), text.size());
    EXPECT_EQ(find_malformed(text + "\xe9" + good, text.size() + 1), text.size() + 1 + good.size());
  }
}

}  // namespace
}  // namespace mylos::test
