//! Scans the configuration of Terragrunt for the paths of other files. Does not evaluate them: their values depend on the folder of the unit.
//!
//! See <https://docs.terragrunt.com/reference/hcl/blocks> and <https://docs.terragrunt.com/reference/hcl/functions>.

use super::facts::{Facts, PATH};
use super::hcl::{self, Visitor, heredoc, is_word, literal};
use super::terragrunt_paths::{Expression, PathKind, PathUse};

/// Maximum number of paths, and of local values, in one file.
const ENTRIES: usize = 2_000;
/// Maximum nesting depth of a path expression.
const DEPTH: usize = 16;
/// Maximum number of arguments of a function in a path expression.
const ARGUMENTS: usize = 16;
/// Reads paths and backend up to the end of the text, or up to the first part that cannot be scanned.
pub(super) fn read(text: &str) -> Facts {
    let mut config = Config::default();
    if let Err((line, why)) = hcl::scan(text, &mut config) {
        config.facts.unclear(line, why);
    }
    config.facts
}

#[derive(Default)]
struct Config<'t> {
    /// Names of the open blocks, the outermost first.
    blocks: Vec<&'t str>,
    facts: Facts,
}

impl Config<'_> {
    fn add(&mut self, kind: PathKind, path: Expression, line: usize) {
        if self.facts.terragrunt.uses.len() == ENTRIES {
            self.facts.unclear(line, "the file contains too many paths");
            return;
        }
        let path = PathUse { kind, path, line };
        self.facts.terragrunt.uses.push(path);
    }

    /// Adds each path of a list.
    fn add_list(&mut self, kind: PathKind, expression: &str, line: usize) {
        match list(expression) {
            Some(paths) => paths
                .into_iter()
                .for_each(|path| self.add(kind, path, line)),
            None => self.add(kind, Expression::Other, line),
        }
    }
}

impl<'t> Visitor<'t> for Config<'t> {
    fn open(&mut self, name: &'t str, _: &'t str, _: usize) {
        self.blocks.push(name);
    }

    fn attribute(&mut self, name: &'t str, expression: &'t str, line: usize) {
        match (self.blocks.as_slice(), name) {
            (["include"], "path") => self.add(PathKind::Include, path(expression), line),
            (["dependency"], "config_path") => {
                self.add(PathKind::Dependency, path(expression), line);
            }
            (["dependencies"], "paths") => {
                self.add_list(PathKind::Dependency, expression, line);
            }
            (["terraform"], "source") => self.add(PathKind::Source, path(expression), line),
            (["terraform", "extra_arguments"], "required_var_files" | "optional_var_files") => {
                self.add_list(PathKind::File, expression, line);
            }
            (["terraform", "extra_arguments"], "arguments") => {
                for argument in list(expression).unwrap_or_default() {
                    if let Some(file) = var_file(argument) {
                        self.add(PathKind::File, file, line);
                    }
                }
            }
            (["remote_state"], "backend") => {
                self.facts.backend(literal(expression).unwrap_or("unknown"));
            }
            (["generate"], "contents") => {
                if let Some(kind) = heredoc(expression).and_then(|text| hcl::read(text).backend) {
                    self.facts.backend(&kind);
                }
            }
            (["locals"], _) => {
                let locals = &mut self.facts.terragrunt.locals;
                if locals.len() < ENTRIES {
                    locals.insert(name.to_owned(), path(expression));
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, name: &'t str, rest: &'t str, line: usize) {
        let kind = match name {
            "read_terragrunt_config" => PathKind::Config,
            "find_in_parent_folders" => {
                let arguments = Parser::new(rest).arguments(0);
                let call = arguments.map_or(Expression::Other, |arguments| {
                    Expression::Call(name.to_owned(), arguments)
                });
                self.add(PathKind::File, call, line);
                return;
            }
            "run_cmd" => {
                let why = "the command of `run_cmd` may read any file of the repository";
                self.facts.unclear(line, why);
                return;
            }
            _ if reads_file(name) => PathKind::File,
            _ => return,
        };
        let first = Parser::new(rest).arguments(0);
        let first = first.and_then(|arguments| arguments.into_iter().next());
        self.add(kind, first.unwrap_or(Expression::Other), line);
    }

    fn close(&mut self) {
        self.blocks.pop();
    }
}

/// Whether the first argument of the function is the path of a file or folder that the function reads.
fn reads_file(function: &str) -> bool {
    let others = [
        "fileexists",
        "fileset",
        "templatefile",
        "sops_decrypt_file",
        "read_tfvars_file",
        "mark_as_read",
    ];
    let suffix = function.strip_prefix("file");
    let is_hash = |suffix: &str| ["", "base64"].contains(&suffix) || is_digest(suffix);
    others.contains(&function) || suffix.is_some_and(is_hash)
}

/// Whether `suffix` is that of a function such as `filesha256` or `filebase64sha512`.
fn is_digest(suffix: &str) -> bool {
    let digest = suffix.strip_prefix("base64").unwrap_or(suffix);
    ["md5", "sha1", "sha256", "sha512"].contains(&digest)
}

/// Returns the file in an argument `-var-file=FILE`.
fn var_file(argument: Expression) -> Option<Expression> {
    const OPTION: &str = "-var-file=";
    match argument {
        Expression::Text(text) => Some(Expression::Text(text.strip_prefix(OPTION)?.to_owned())),
        Expression::Template(mut parts) => {
            let Expression::Text(first) = parts.first_mut()? else {
                return None;
            };
            *first = first.strip_prefix(OPTION)?.to_owned();
            Some(Expression::Template(parts))
        }
        Expression::Local(_) | Expression::Call(..) | Expression::Other => None,
    }
}

/// Parses a path expression.
fn path(expression: &str) -> Expression {
    let mut parser = Parser::new(expression);
    let parsed = parser.expression(0);
    parser.skip_blanks();
    parsed
        .filter(|_| parser.rest.is_empty())
        .unwrap_or(Expression::Other)
}

/// Parses a list of path expressions. `None` for other expressions.
fn list(expression: &str) -> Option<Vec<Expression>> {
    let inner = expression.strip_prefix('[')?;
    let mut parser = Parser::new(inner);
    let items = parser.items(']', ENTRIES, 0)?;
    parser.rest.is_empty().then_some(items)
}

/// Parser of path expressions. Methods return `None` for other expressions.
struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn new(rest: &'t str) -> Self {
        Self { rest }
    }

    fn expression(&mut self, depth: usize) -> Option<Expression> {
        if depth > DEPTH {
            return None;
        }
        self.skip_blanks();
        if self.take('"') {
            return self.template(depth);
        }
        let name = self.word();
        if name.is_empty() {
            return None;
        }
        if self.take('(') {
            let arguments = self.arguments(depth + 1)?;
            return Some(Expression::Call(name.to_owned(), arguments));
        }
        if name == "local" && self.take('.') {
            let local = self.word();
            let is_whole = !local.is_empty() && !self.rest.starts_with(['.', '[']);
            return is_whole.then(|| Expression::Local(local.to_owned()));
        }
        None
    }

    /// Parses the arguments of a function up to `)`. An argument that is not a path expression is [`Expression::Other`] if it is the last one.
    fn arguments(&mut self, depth: usize) -> Option<Vec<Expression>> {
        self.items(')', ARGUMENTS, depth)
    }

    /// Parses expressions, separated by commas, up to `end`.
    fn items(&mut self, end: char, limit: usize, depth: usize) -> Option<Vec<Expression>> {
        let mut items = Vec::new();
        loop {
            self.skip_blanks();
            if self.take(end) {
                return Some(items);
            }
            if items.len() == limit {
                return None;
            }
            let parsed = self.expression(depth + 1);
            self.skip_blanks();
            let is_end = self.rest.starts_with(end);
            match parsed {
                Some(item) if self.take(',') || is_end => items.push(item),
                // The paths that functions read are the first arguments.
                _ if end == ')' && !items.is_empty() => {
                    items.push(Expression::Other);
                    return Some(items);
                }
                _ => return None,
            }
        }
    }

    /// Parses a quoted template after its first quote.
    fn template(&mut self, depth: usize) -> Option<Expression> {
        let mut parts = Vec::new();
        loop {
            let length = self.rest.find(['"', '\\', '$', '%', '\n'])?;
            let (text, rest) = self.rest.split_at_checked(length)?;
            if text.len() > PATH {
                return None;
            }
            if !text.is_empty() {
                parts.push(Expression::Text(text.to_owned()));
            }
            self.rest = rest;
            if self.take('"') {
                let mut parts = parts;
                return match parts.len() {
                    0 => Some(Expression::Text(String::new())),
                    1 => parts.pop(),
                    _ => Some(Expression::Template(parts)),
                };
            }
            self.rest = self.rest.strip_prefix("${")?;
            parts.push(self.expression(depth + 1)?);
            self.skip_blanks();
            if !self.take('}') || parts.len() > ARGUMENTS {
                return None;
            }
        }
    }

    fn word(&mut self) -> &'t str {
        let length = self.rest.bytes().take_while(|byte| is_word(*byte)).count();
        let (word, rest) = self
            .rest
            .split_at_checked(length)
            .unwrap_or(("", self.rest));
        self.rest = rest;
        word
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips blanks, newlines and line comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') && !self.rest.starts_with("//") {
                return;
            }
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.rest = self.rest.get(end..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn text(text: &str) -> Expression {
        Expression::Text(text.to_owned())
    }

    fn call(name: &str, arguments: Vec<Expression>) -> Expression {
        Expression::Call(name.to_owned(), arguments)
    }

    #[rstest]
    #[case::text("\"../x\"", text("../x"))]
    #[case::call("find_in_parent_folders( \"root.hcl\", )", call("find_in_parent_folders", vec![text("root.hcl")]))]
    #[case::local("local.dir", Expression::Local("dir".to_owned()))]
    #[case::template(
        "\"${dirname(find_in_parent_folders())}/x\"",
        Expression::Template(vec![
            call("dirname", vec![call("find_in_parent_folders", Vec::new())]), text("/x"),
        ])
    )]
    #[case::condition("local.x ? \"a\" : \"b\"", Expression::Other)]
    #[case::attribute("local.x.y", Expression::Other)]
    #[case::escape("\"a\\nb\"", Expression::Other)]
    #[case::directive("\"%{ if true }a%{ endif }\"", Expression::Other)]
    #[case::open("\"a", Expression::Other)]
    fn path_expressions_are_parsed(#[case] expression: &str, #[case] expected: Expression) {
        assert_eq!(path(expression), expected);
    }

    #[test]
    fn deep_and_long_expressions_are_not_evaluated() {
        let deep = format!("{}\"x\"{}", "dirname(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(path(&deep), Expression::Other);
        let long = format!("\"{}\"", "x".repeat(PATH + 1));
        assert_eq!(path(&long), Expression::Other);
        let many = format!("f({})", "\"x\",".repeat(ARGUMENTS + 1));
        assert_eq!(path(&many), Expression::Other);
    }

    #[test]
    fn number_of_paths_in_a_file_is_limited() {
        let file = "inputs = { a = file(\"x\") }\n".repeat(ENTRIES + 1);
        let facts = read(&file);
        assert_eq!(facts.terragrunt.uses.len(), ENTRIES);
        assert!(facts.unclear.is_some());
    }

    #[rstest]
    #[case::remote_state("remote_state {\n  backend = \"s3\"\n}\n", Some("s3"))]
    #[case::generated(
        "generate \"backend\" {\n  contents = <<-EOF\n    terraform {\n      backend \"gcs\" {}\n    }\n  EOF\n}\n",
        Some("gcs")
    )]
    #[case::provider(
        "generate \"p\" {\n  contents = <<EOF\nprovider \"aws\" {}\nEOF\n}\n",
        None
    )]
    fn backend_is_that_of_remote_state_or_generated_file(
        #[case] file: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(read(file).backend.as_deref(), expected);
    }

    #[test]
    fn paths_of_blocks_functions_and_arguments_are_found() {
        use PathKind::{Config, Dependency, File, Include, Source};

        let file = r#"
include "root" { path = find_in_parent_folders("root.hcl") }
locals {
  region = read_terragrunt_config("../region.hcl").locals.region
  text   = "${yamldecode(file("x.yaml")).a}"
}
dependency "net" { config_path = "../net" }
dependencies { paths = ["../a", "../b",] }
terraform {
  source = "../modules//app"
  extra_arguments "vars" {
    commands           = get_terraform_commands_that_need_vars()
    required_var_files = ["common.tfvars"]
    arguments          = ["-var-file=${get_terragrunt_dir()}/x.tfvars", "-lock=false"]
  }
}
"#;
        let facts = read(file);
        assert_eq!(facts.unclear, None);
        let found: Vec<_> = facts
            .terragrunt
            .uses
            .iter()
            .map(|path| (path.kind, path.line))
            .collect();
        let expected = [
            (File, 2),
            (Include, 2),
            (Config, 4),
            (File, 5),
            (Dependency, 7),
            (Dependency, 8),
            (Dependency, 8),
            (Source, 10),
            (File, 13),
            (File, 14),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn commands_make_the_file_unclear() {
        let facts = read("inputs = {\n  a = run_cmd(\"./x.sh\")\n}\n");
        assert_eq!(facts.unclear.unwrap().line, 2);
    }
}
