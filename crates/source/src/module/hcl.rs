//! Scans the native syntax of Terraform for block headers and literal attributes.
//!
//! Follows the lexical grammar of the HCL specification (<https://github.com/hashicorp/hcl/blob/main/hclsyntax/spec.md>) in linear time and
//! without a parse tree. Expressions are skipped. Text outside of that grammar ends the scan and is not an error: the engine validates the
//! configuration.

use super::facts::{COMPUTED, Facts};

/// Maximum nesting depth of blocks, and of brackets and templates. Real modules have fewer than 100 levels.
const DEPTH: usize = 1_000;

/// Reads facts (module calls and backend) up to the end of the text, or up to the first part that cannot be scanned.
pub(super) fn read(text: &str) -> Facts {
    let mut modules = Modules::default();
    if let Err((line, why)) = scan(text, &mut modules) {
        modules.facts.unclear(line, why);
    }
    modules.facts
}

/// Reader of the parts of a file that the scanner finds.
pub(super) trait Visitor<'t> {
    /// Reads the header of a block, without its nested blocks and attributes.
    fn open(&mut self, name: &'t str, label: &'t str, line: usize);
    /// Reads an attribute of the last open block, or of the file. `expression`: its value, without the blanks and comments around it.
    fn attribute(&mut self, name: &'t str, expression: &'t str, line: usize);
    /// Reads a call of the function `name` in an expression or a template. `rest`: the text from the first argument to the end of the file.
    fn call(&mut self, _name: &'t str, _rest: &'t str, _line: usize) {}
    /// Reads the end of the last open block.
    fn close(&mut self);
}

/// Scans `text` up to its end.
///
/// # Errors
/// Line and reason of the first part that cannot be scanned.
pub(super) fn scan<'t>(
    text: &'t str,
    visitor: &mut impl Visitor<'t>,
) -> Result<(), (usize, &'static str)> {
    let mut scanner = Scanner {
        text,
        at: 0,
        line: 1,
        counted: 0,
        depth: 0,
        visitor,
    };
    scanner.body().map_err(|why| (scanner.line(), why))
}

/// Reads the local modules and the backend of a configuration file.
#[derive(Default)]
struct Modules<'t> {
    /// Open blocks, the outermost first.
    blocks: Vec<Block<'t>>,
    facts: Facts,
}

impl<'t> Visitor<'t> for Modules<'t> {
    fn open(&mut self, name: &'t str, label: &'t str, line: usize) {
        let module = |name| Block::Module {
            name,
            line,
            source: None,
        };
        let block = match (self.blocks.as_slice(), name) {
            ([], "module" | "mock_provider") => module(label),
            ([], "run") => Block::Run(label),
            ([Block::Run(run)], "module") => module(run),
            ([], "terraform") => Block::Terraform,
            ([Block::Terraform], "backend") => {
                self.facts.backend(label);
                Block::Other
            }
            ([Block::Terraform], "cloud") => {
                self.facts.backend("cloud");
                Block::Other
            }
            _ => Block::Other,
        };
        self.blocks.push(block);
    }

    fn attribute(&mut self, name: &'t str, expression: &'t str, _: usize) {
        if let Some(Block::Module { source, .. }) = self.blocks.last_mut()
            && name == "source"
        {
            *source = Some(literal(expression).map_or(Source::Expression, Source::Literal));
        }
    }

    fn close(&mut self) {
        if let Some(Block::Module { name, line, source }) = self.blocks.pop() {
            match source {
                Some(Source::Literal(source)) => self.facts.call(name, source, line),
                Some(Source::Expression) => self.facts.unclear(line, COMPUTED),
                // A missing `source` is not an error here: the engine reports it.
                None => {}
            }
        }
    }
}

/// An open block.
enum Block<'t> {
    /// A block with the `source` of a module: label, line and `source`.
    Module {
        name: &'t str,
        line: usize,
        source: Option<Source<'t>>,
    },
    /// A `run` block of a test file, with its label.
    Run(&'t str),
    Terraform,
    Other,
}

/// The `source` of a `module` block.
#[derive(Clone, Copy)]
enum Source<'t> {
    Literal(&'t str),
    Expression,
}

/// A part of an expression that is not closed yet.
enum Part<'t> {
    /// A bracket, with the byte that closes the bracket.
    Bracket(u8),
    Quote,
    /// A heredoc, with the word on the line that ends the heredoc.
    Heredoc(&'t str),
}

struct Scanner<'t, 'v, V> {
    text: &'t str,
    /// Position of the next byte.
    at: usize,
    /// Line of the position `counted`, from 1.
    line: usize,
    counted: usize,
    /// Number of open blocks.
    depth: usize,
    visitor: &'v mut V,
}

type Scanned<T = ()> = Result<T, &'static str>;

impl<'t, V: Visitor<'t>> Scanner<'t, '_, V> {
    fn body(&mut self) -> Scanned {
        loop {
            self.skip_blank_lines()?;
            let start = self.at;
            match self.peek() {
                None if self.depth == 0 => return Ok(()),
                None => return Err("the last block is not closed"),
                Some(b'}') => {
                    self.at += 1;
                    self.close()?;
                    continue;
                }
                Some(_) => {}
            }
            let name = self.word();
            if name.is_empty() {
                return Err("expected an attribute or a block");
            }
            self.skip_spaces()?;
            if self.peek() == Some(b'=') {
                let line = self.line_of(start);
                self.at += 1;
                let expression = self.expression()?;
                self.visitor.attribute(name, expression, line);
            } else {
                self.header(name, start)?;
            }
        }
    }

    /// Reads the labels and the `{` of a block. The block type `name` is at position `start`.
    fn header(&mut self, name: &'t str, start: usize) -> Scanned {
        let mut label = None;
        loop {
            self.skip_spaces()?;
            let text = match self.peek() {
                Some(b'{') => break,
                Some(b'"') => self.quoted()?,
                Some(byte) if is_word(byte) => self.word(),
                _ => return Err("a block header without `{`"),
            };
            label = label.or(Some(text));
        }
        self.at += 1;
        if self.depth == DEPTH {
            return Err("too many nested blocks");
        }
        self.depth += 1;
        let line = self.line_of(start);
        self.visitor.open(name, label.unwrap_or_default(), line);
        Ok(())
    }

    fn close(&mut self) -> Scanned {
        self.depth = self.depth.checked_sub(1).ok_or("`}` without a block")?;
        self.visitor.close();
        Ok(())
    }

    /// Skips an expression and returns its text without the blanks and comments around it.
    fn expression(&mut self) -> Scanned<&'t str> {
        self.skip_spaces()?;
        let start = self.at;
        let mut end = start;
        let mut open = Vec::new();
        loop {
            if open.len() > DEPTH {
                return Err("too many nested brackets");
            }
            match open.last() {
                Some(Part::Quote) => self.quote(&mut open)?,
                Some(Part::Heredoc(word)) => {
                    let word = *word;
                    self.heredoc(word, &mut open)?;
                }
                Some(Part::Bracket(_)) | None => {
                    if self.skip_comment()? {
                        continue;
                    }
                    match self.peek() {
                        None | Some(b'\n' | b'}') if open.is_empty() => {
                            return Ok(self.text.get(start..end).unwrap_or_default());
                        }
                        None => return Err("an expression is not terminated"),
                        Some(byte) if byte.is_ascii_whitespace() => {
                            self.at += 1;
                            continue;
                        }
                        Some(byte) if is_word(byte) => self.name(),
                        Some(byte) => self.token(byte, &mut open)?,
                    }
                }
            }
            end = self.at;
        }
    }

    /// Skips an identifier, a keyword or a number in an expression.
    fn name(&mut self) {
        let start = self.at;
        let name = self.word();
        if self.peek() == Some(b'(') {
            let line = self.line_of(start);
            let rest = self.text.get(self.at + 1..).unwrap_or_default();
            self.visitor.call(name, rest, line);
        }
    }

    /// Skips a token outside of strings.
    fn token(&mut self, byte: u8, open: &mut Vec<Part<'t>>) -> Scanned {
        self.at += 1;
        match byte {
            b'(' => open.push(Part::Bracket(b')')),
            b'[' => open.push(Part::Bracket(b']')),
            b'{' => open.push(Part::Bracket(b'}')),
            b'"' => open.push(Part::Quote),
            b')' | b']' | b'}' => match open.pop() {
                Some(Part::Bracket(closing)) if closing == byte => {}
                _ => return Err("mismatched brackets"),
            },
            b'<' => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                if let Some((word, length)) = heredoc_start(rest) {
                    self.at += length;
                    open.push(Part::Heredoc(word));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads a quoted string to its end, or to an interpolation in it.
    fn quote(&mut self, open: &mut Vec<Part<'t>>) -> Scanned {
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.at += 1;
                    open.pop();
                    return Ok(());
                }
                b'\n' => break,
                b'\\' => self.at += 2,
                _ if self.enters_template(byte) => {
                    open.push(Part::Bracket(b'}'));
                    return Ok(());
                }
                _ => {}
            }
        }
        Err("a quoted string is not closed on its line")
    }

    /// Reads a heredoc to the end of its closing line, without the newline, or to an interpolation in it.
    fn heredoc(&mut self, word: &str, open: &mut Vec<Part<'t>>) -> Scanned {
        while let Some(byte) = self.peek() {
            if self.at.checked_sub(1).and_then(|at| self.byte(at)) == Some(b'\n') {
                let rest = self.text.get(self.at..).unwrap_or_default();
                let line = rest.split('\n').next().unwrap_or_default();
                if line.trim() == word {
                    self.at += line.len();
                    open.pop();
                    return Ok(());
                }
            }
            if self.enters_template(byte) {
                open.push(Part::Bracket(b'}'));
                return Ok(());
            }
        }
        Err("a heredoc is not terminated")
    }

    /// Skips `byte`, or a sequence that begins with `byte`: `${`, `%{`, `$${` or `%%{`. Returns true for `${` and `%{`, which begin an interpolation
    /// or a directive.
    fn enters_template(&mut self, byte: u8) -> bool {
        let (enters, length) = match (byte, self.byte(self.at + 1), self.byte(self.at + 2)) {
            (b'$' | b'%', Some(b'{'), _) => (true, 2),
            (b'$', Some(b'$'), Some(b'{')) | (b'%', Some(b'%'), Some(b'{')) => (false, 3),
            _ => (false, 1),
        };
        self.at += length;
        enters
    }

    /// Reads a quoted label. Labels have no interpolations.
    fn quoted(&mut self) -> Scanned<&'t str> {
        let start = self.at + 1;
        let mut open = vec![Part::Quote];
        self.at = start;
        self.quote(&mut open)?;
        if !open.is_empty() {
            return Err("an interpolation in a block label");
        }
        Ok(self.text.get(start..self.at - 1).unwrap_or_default())
    }

    /// Reads an identifier; empty if there is none.
    fn word(&mut self) -> &'t str {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Skips blanks, newlines and comments between attributes and blocks.
    fn skip_blank_lines(&mut self) -> Scanned {
        loop {
            while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
                self.at += 1;
            }
            if !self.skip_comment()? {
                return Ok(());
            }
        }
    }

    /// Skips spaces, tabs and block comments.
    fn skip_spaces(&mut self) -> Scanned {
        loop {
            while matches!(self.peek(), Some(b' ' | b'\t')) {
                self.at += 1;
            }
            if !self.rest().starts_with(b"/*") {
                return Ok(());
            }
            self.skip_comment()?;
        }
    }

    /// Skips a comment. Does not skip the newline after a line comment. Returns false if there is no comment.
    fn skip_comment(&mut self) -> Scanned<bool> {
        let rest = self.rest();
        if rest.starts_with(b"#") || rest.starts_with(b"//") {
            self.at += rest
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(rest.len());
            return Ok(true);
        }
        if !rest.starts_with(b"/*") {
            return Ok(false);
        }
        let inside = self.text.get(self.at + 2..).unwrap_or_default();
        let length = inside.find("*/").ok_or("a comment is not closed")?;
        self.at += length + 4;
        Ok(true)
    }

    fn peek(&self) -> Option<u8> {
        self.byte(self.at)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn rest(&self) -> &'t [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn line(&mut self) -> usize {
        self.line_of(self.at)
    }

    /// Returns the line of a position, from 1. Positions must not decrease between calls.
    fn line_of(&mut self, at: usize) -> usize {
        let passed = self.text.get(self.counted..at).unwrap_or_default();
        self.line += passed.matches('\n').count();
        self.counted = self.counted.max(at);
        self.line
    }
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | 0x80..)
}

/// Reads the first line of a heredoc. `rest` starts with the second `<` of the line. Returns the word that ends the heredoc, and the length
/// of the line in `rest`.
fn heredoc_start(rest: &str) -> Option<(&str, usize)> {
    let after = rest.strip_prefix('<')?;
    let after = after.strip_prefix('-').unwrap_or(after);
    let length = after.bytes().take_while(|byte| is_word(*byte)).count();
    let (word, end) = after.split_at_checked(length)?;
    let end = end.strip_prefix('\r').unwrap_or(end);
    let body = end.strip_prefix('\n')?;
    (length > 0).then_some((word, rest.len() - body.len()))
}

/// Returns the lines of a heredoc; `None` for other expressions.
pub(super) fn heredoc(expression: &str) -> Option<&str> {
    let (word, start) = heredoc_start(expression.strip_prefix('<')?)?;
    let body = expression.get(start + 1..)?;
    body.trim_end().strip_suffix(word)
}

/// Returns the text of a quoted string. `None` for other expressions, and for strings with escapes or interpolations.
pub(super) fn literal(expression: &str) -> Option<&str> {
    let text = expression.strip_prefix('"')?.strip_suffix('"')?;
    let plain = !text.contains(['"', '\\']) && !text.contains("${") && !text.contains("%{");
    plain.then_some(text)
}
