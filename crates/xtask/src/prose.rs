//! `cargo xtask prose` fails if a kind of text of the project has more than one paraphrase per 1,000 words.
//!
//! A paraphrase is a phrase instead of the term that Kubernetes or Terraform uses, such as `goes on` for *resumes*.
//! File `paraphrases.txt` contains the patterns. Code blocks, inline code and generated files are not counted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use alustan_api::{Terraform, terraform_run};
use anyhow::{Context, Result, anyhow, ensure};
use kube::CustomResourceExt;
use proc_macro2::{TokenStream, TokenTree};
use regex::Regex;
use serde_json::Value;

use crate::imports::{after_item, is_test};

/// Maximum number of paraphrases per 1,000 words.
const LIMIT: usize = 1;

/// Regular expressions of paraphrases, one per line.
const PATTERNS: &str = include_str!("paraphrases.txt");

/// Folders and files whose texts are counted.
const PLACES: [&str; 9] = [
    ".ci", ".github", "Makefile", "crates", "deploy", "docs", "hack", "images", "tests",
];

/// Names of folders that are skipped.
const SKIPPED: [&str; 3] = ["target", "snapshots", "proptest-regressions"];

/// Kind of text. Each kind has its own rate of paraphrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Comments,
    Docs,
    Crd,
    Messages,
    TestNames,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Comments => "comments",
            Self::Docs => "docs",
            Self::Crd => "CRD descriptions",
            Self::Messages => "messages",
            Self::TestNames => "test names",
        }
    }
}

/// Texts of the project by kind, each with the file that contains it.
#[derive(Default)]
struct Texts(BTreeMap<Kind, Vec<(String, PathBuf)>>);

/// Counts the paraphrases in the repository `root` and prints the rates.
///
/// # Errors
/// If a rate is above [`LIMIT`], or a file cannot be read. The error lists the paraphrases of each kind whose rate is
/// above the limit.
pub(crate) fn check(root: &Path) -> Result<()> {
    let pattern = Regex::new(&PATTERNS.lines().collect::<Vec<_>>().join("|"))?;
    let mut texts = Texts::read(root)?;
    texts.add_descriptions(&serde_json::to_value(Terraform::crd())?);
    texts.add_descriptions(&serde_json::to_value(terraform_run::crd())?);
    let mut excess = String::new();
    for (kind, texts) in &texts.0 {
        let words: usize = texts
            .iter()
            .map(|(text, _)| text.split_whitespace().count())
            .sum();
        let paraphrases: Vec<String> = texts
            .iter()
            .flat_map(|(text, file)| {
                let file = file.strip_prefix(root).unwrap_or(file).display();
                paraphrases(&pattern, text)
                    .into_iter()
                    .map(move |paraphrase| format!("{file}: {paraphrase}"))
            })
            .collect();
        writeln!(
            std::io::stdout(),
            "{}: {} paraphrases in {words} words",
            kind.name(),
            paraphrases.len()
        )?;
        if paraphrases.len() * 1000 > words * LIMIT {
            write!(excess, "\n{}:\n  {}", kind.name(), paraphrases.join("\n  "))?;
        }
    }
    ensure!(
        excess.is_empty(),
        "more than {LIMIT} paraphrase per 1,000 words; use the terms of docs/development/glossary.md:{excess}"
    );
    Ok(())
}

/// Returns the paraphrases in `text`, each with the words around it.
fn paraphrases(pattern: &Regex, text: &str) -> Vec<String> {
    pattern
        .find_iter(text)
        .map(|matched| {
            let start = text.floor_char_boundary(matched.start().saturating_sub(40));
            let end = text.ceil_char_boundary(matched.end() + 40);
            let around = text.get(start..end).unwrap_or_default();
            around.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect()
}

impl Texts {
    fn read(root: &Path) -> Result<Self> {
        let mut texts = Self::default();
        let documents = std::fs::read_dir(root)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .filter(|path| has_extension(path, &["md"]));
        for path in PLACES.iter().map(|place| root.join(place)).chain(documents) {
            texts.walk(&path)?;
        }
        Ok(texts)
    }

    /// Adds the texts of the file or folder `path`.
    fn walk(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return self.add_file(path);
        }
        let entries =
            std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        for entry in entries {
            let entry = entry?;
            if !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                self.walk(&entry.path())?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(());
        };
        if text
            .lines()
            .take(3)
            .any(|line| line.contains("Generated by `cargo xtask gen`"))
        {
            return Ok(());
        }
        if has_extension(path, &["md"]) {
            self.add(Kind::Docs, path, without_code(&text));
        } else if has_extension(path, &["rs"]) {
            self.add(Kind::Comments, path, comments(&text, "//"));
            let tokens: TokenStream = text
                .parse()
                .map_err(|error| anyhow!("{}: {error}", path.display()))?;
            let is_test = path.components().any(|part| {
                let name = Path::new(part.as_os_str()).file_stem();
                name == Some(OsStr::new("tests"))
            });
            self.add_rust(path, tokens, is_test);
        } else if !has_extension(path, &["json", "lock", "golden", "txt", "crt", "key"]) {
            self.add(Kind::Comments, path, comments(&text, "#"));
        }
        Ok(())
    }

    /// Adds the names of tests. Adds the string literals that are outside of tests and contain a space.
    fn add_rust(&mut self, path: &Path, tokens: TokenStream, is_in_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        let mut names_test = false;
        while let [first, after @ ..] = rest {
            rest = after;
            match first {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    let attribute = rest
                        .first()
                        .map(ToString::to_string)
                        .unwrap_or_default()
                        .replace(' ', "");
                    if is_test(rest) && !is_in_test {
                        let item = rest.len() - after_item(rest).len();
                        let (item, after) = rest.split_at(item);
                        self.add_rust(path, item.iter().cloned().collect(), true);
                        rest = after;
                    } else if attribute.starts_with("[doc") {
                        rest = rest.get(1..).unwrap_or_default();
                    } else if attribute.starts_with("[test]")
                        || attribute.starts_with("[tokio::test")
                    {
                        names_test = true;
                    }
                }
                TokenTree::Ident(word) if word == "fn" && names_test => {
                    let name = rest.first().map(ToString::to_string).unwrap_or_default();
                    self.add(Kind::TestNames, path, name.replace('_', " "));
                    names_test = false;
                }
                TokenTree::Group(group) => self.add_rust(path, group.stream(), is_in_test),
                TokenTree::Literal(literal) if !is_in_test => {
                    let literal = literal.to_string();
                    let text = literal.trim_start_matches(['r', '#']);
                    if text.starts_with('"') && text.contains(' ') {
                        self.add(
                            Kind::Messages,
                            path,
                            text.trim_matches(['"', '#']).to_owned(),
                        );
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Adds the field descriptions in a schema of the CRD.
    fn add_descriptions(&mut self, schema: &Value) {
        match schema {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "description" => {
                            self.add(Kind::Crd, Path::new("CRD"), without_code(text));
                        }
                        _ => self.add_descriptions(value),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.add_descriptions(value)),
            _ => {}
        }
    }

    fn add(&mut self, kind: Kind, file: &Path, text: String) {
        self.0
            .entry(kind)
            .or_default()
            .push((text, file.to_owned()));
    }
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .is_some_and(|actual| extensions.iter().any(|extension| actual == *extension))
}

/// Returns the text of full-line comments that begin with `mark`, without `mark`.
fn comments(text: &str, mark: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("#!/"))
        .filter_map(|line| line.trim_start().strip_prefix(mark))
        .map(|line| line.trim_start_matches(['/', '!', '#']).trim());
    without_code(&lines.collect::<Vec<_>>().join("\n"))
}

/// Returns Markdown without code blocks and inline code.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let text = text
        .lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            is_code ^= fence;
            !fence && !is_code
        })
        .collect::<Vec<_>>()
        .join("\n");
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str, text: &str) -> BTreeMap<Kind, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let mut texts = Texts::default();
        texts.walk(folder.path()).unwrap();
        let join = |texts: Vec<(String, _)>| {
            texts
                .into_iter()
                .map(|(text, _)| text)
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("; ")
        };
        texts
            .0
            .into_iter()
            .map(|(kind, texts)| (kind, join(texts)))
            .collect()
    }

    #[test]
    fn rust_has_comments_messages_and_test_names() {
        let text = r##"
            /// Returns `x` of a run.
            #[error("the run failed")]
            fn f() { bail!("no run {}", "word", r#"of "a" user"#) }
            #[cfg(test)]
            mod tests {
                #[test]
                #[ignore = "takes long"]
                fn run_is_retried() { assert!(x, "only a test"); }
            }
        "##;
        let paragraphs = texts("lib.rs", text);
        let wanted = [
            (Kind::Comments, "Returns ` of a run."),
            (Kind::Messages, "the run failed; no run {}; of \"a\" user"),
            (Kind::TestNames, "run is retried"),
        ];
        assert_eq!(
            paragraphs,
            wanted.map(|(kind, text)| (kind, text.to_owned())).into()
        );
    }

    #[test]
    fn markdown_counts_without_code() {
        let text = "A `nobody` run.\n```sh\nnobody\n```\nIt ends.";
        assert_eq!(texts("a.md", text)[&Kind::Docs], "A ` run.\nIt ends.");
    }

    #[test]
    fn scripts_have_comments_and_generated_files_have_no_text() {
        let text = "#!/bin/sh\n# Starts it.\necho nobody # not a line";
        assert_eq!(texts("run", text)[&Kind::Comments], "Starts it.");
        let text = "# Generated by `cargo xtask gen`; do not edit.\n# nobody";
        assert_eq!(texts("a.yaml", text), BTreeMap::new());
    }

    #[test]
    fn paraphrases_are_found_with_the_words_around() {
        let pattern = Regex::new(&PATTERNS.lines().collect::<Vec<_>>().join("|")).unwrap();
        let text = "Once it is fixed, it goes on by itself.";
        let sentences = paraphrases(&pattern, text);
        assert_eq!(sentences, ["Once it is fixed, it goes on by itself."]);
        assert_eq!(
            paraphrases(&pattern, "The run resumes automatically."),
            [""; 0]
        );
    }
}
