//! Masks known secret values in output, even if a value is split over several writes (rule 15).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use alustan_api::RunLog;
use alustan_api::report::{Failure, MAX_TEXT, PlanAsks};
use alustan_api::run::{RunDetails, StateLock};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::failure::{cut, cut_to_bytes};

/// Text that replaces a secret value.
pub const MASK: &str = "(redacted)";

/// Minimum length of masked values, in bytes. Shorter values occur in most texts by chance.
const MIN_BYTES: usize = 4;

/// Number of bytes by which secret values are found. All forms of a masked value have at least this length.
const PREFIX: usize = MIN_BYTES;

/// Minimum length of a masked line, in bytes. Each line of a secret value is also masked separately.
const MIN_LINE_BYTES: usize = 6;

/// Minimum length of values that are masked in base64, in bytes. The first and last base64 characters of a value depend on the bytes around
/// the value. For a shorter value, the remaining characters are so few that they may occur by chance.
const SHORTEST_IN_BASE64: usize = 8;

/// Redactor of the secret values of a run. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor {
    needles: Arc<Needles>,
}

/// Secret values and their forms.
struct Needles {
    /// Whether a needle begins with the byte.
    first_bytes: [bool; 256],
    /// Needles by their first [`PREFIX`] bytes.
    by_prefix: HashMap<[u8; PREFIX], Vec<Vec<u8>>>,
}

impl Default for Needles {
    fn default() -> Self {
        Self {
            first_bytes: [false; 256],
            by_prefix: HashMap::new(),
        }
    }
}

impl Needles {
    /// Returns the needles with the first [`PREFIX`] bytes of `rest`. Empty if `rest` is shorter.
    fn with_prefix_of(&self, rest: &[u8]) -> &[Vec<u8>] {
        let prefix = rest.first_chunk::<PREFIX>();
        prefix
            .and_then(|prefix| self.by_prefix.get(prefix))
            .map_or(&[], Vec::as_slice)
    }

    fn may_begin_with(&self, byte: u8) -> bool {
        let is_first = self.first_bytes.get(usize::from(byte));
        is_first.copied().unwrap_or_default()
    }
}

impl Redactor {
    /// Creates a redactor that masks `values`, their lines, and their forms in JSON, URLs, shell traces and base64.
    pub fn new<I, S>(values: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        Self::default().with(values)
    }

    /// Returns a redactor that also masks `values`.
    #[must_use]
    pub fn with<I, S>(&self, values: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        let known = self.needles.by_prefix.values().flatten();
        let mut needles: BTreeSet<Vec<u8>> = known.cloned().collect();
        for value in values {
            needles.extend(shapes(value.as_ref()).into_iter().map(String::into_bytes));
        }
        let mut indexed = Needles::default();
        for needle in needles {
            let Some(prefix) = needle.first_chunk::<PREFIX>().copied() else {
                continue;
            };
            if let Some(is_first) = indexed.first_bytes.get_mut(usize::from(prefix[0])) {
                *is_first = true;
            }
            indexed.by_prefix.entry(prefix).or_default().push(needle);
        }
        Self {
            needles: Arc::new(indexed),
        }
    }

    /// Masks secret values in `text`.
    pub fn text(&self, text: &str) -> String {
        let mut stream = self.stream();
        let mut bytes = stream.push(text.as_bytes());
        bytes.extend(stream.finish());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Masks secret values in the beginning of `text`, and returns at most `max` bytes of the result. Reads at most 64 times `max` bytes of
    /// `text`.
    pub fn beginning(&self, text: &str, max: usize) -> String {
        let mut stream = self.stream();
        let read = cut_to_bytes(text, max.saturating_mul(64));
        let mut bytes = stream.push(read.as_bytes());
        // Otherwise, the bytes in the stream may be the beginning of a secret value.
        if read.len() == text.len() {
            bytes.extend(stream.finish());
        }
        cut_to_bytes(&String::from_utf8_lossy(&bytes), max).to_owned()
    }

    /// Masks secret values in the message of a failure.
    pub fn failure(&self, failure: Failure) -> Failure {
        Failure {
            message: cut(&self.text(&failure.message), MAX_TEXT),
            ..failure
        }
    }

    /// Masks secret values in text of the plan and log. The change set is already masked.
    pub fn details(&self, details: RunDetails) -> RunDetails {
        let RunLog {
            head,
            tail,
            omitted_bytes,
        } = details.log;
        RunDetails {
            plan: details.plan.map(|plan| self.text(&plan)),
            log: RunLog {
                head: self.text(&head),
                tail: self.text(&tail),
                omitted_bytes,
            },
            ..details
        }
    }

    /// Masks secret values in the reasons of an approval request: a reason quotes the condition of a rule, which may contain a secret
    /// value.
    pub fn asks(&self, mut asks: PlanAsks) -> PlanAsks {
        for because in &mut asks.because {
            *because = self.text(because);
        }
        asks
    }

    /// Masks secret values in a lock.
    pub fn lock(&self, lock: &StateLock) -> StateLock {
        StateLock {
            id: self.text(&lock.id),
            operation: self.text(&lock.operation),
            who: self.text(&lock.who),
            at: lock.at,
        }
    }

    /// Returns a redactor for one stream of bytes.
    pub fn stream(&self) -> Stream {
        Stream {
            redactor: self.clone(),
            held: Vec::new(),
            masked: 0,
            in_mask: false,
        }
    }

    /// Returns the length of the longest secret value with which `rest` begins, in bytes; 0 without such a value. `first`: first byte of
    /// `rest`.
    fn longest_at(&self, first: u8, rest: &[u8]) -> usize {
        if !self.needles.may_begin_with(first) {
            return 0;
        }
        let needles = self.needles.with_prefix_of(rest).iter();
        let whole = needles.filter(|needle| rest.starts_with(needle));
        whole.map(Vec::len).max().unwrap_or(0)
    }

    /// Whether `rest` is the beginning of a longer secret value, so that more bytes are needed to recognise the value. `first`: first byte
    /// of `rest`.
    fn may_begin_at(&self, first: u8, rest: &[u8]) -> bool {
        if !self.needles.may_begin_with(first) {
            return false;
        }
        if rest.len() < PREFIX {
            let mut prefixes = self.needles.by_prefix.keys();
            return prefixes.any(|prefix| prefix.starts_with(rest));
        }
        let needles = self.needles.with_prefix_of(rest).iter();
        let mut longer = needles.filter(|needle| needle.len() > rest.len());
        longer.any(|needle| needle.starts_with(rest))
    }
}

/// Returns the forms of `value` that commands are likely to print.
pub(crate) fn shapes(value: &str) -> Vec<String> {
    let value = value.trim();
    if value.len() < MIN_BYTES {
        return Vec::new();
    }
    let mut shapes = vec![value.to_owned()];
    shapes.extend(
        value
            .lines()
            .map(str::trim)
            .filter(|line| line.len() >= MIN_LINE_BYTES)
            .map(str::to_owned),
    );
    let json = in_json(value);
    // Go escapes `<`, `>` and `&` in JSON, and so does the engine.
    let go = json
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026");
    shapes.extend([json, go, value.replace('\'', r"'\''")]);
    shapes.extend([in_url(value, "%20"), in_url(value, "+")]);
    if value.len() >= SHORTEST_IN_BASE64 {
        shapes.extend(in_base64(value));
    }
    shapes
}

fn in_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    let inner = quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(&quoted).to_owned()
}

/// Percent-encodes all characters that are not unreserved (RFC 3986, section 2.3). Replaces a space by `space`.
fn in_url(value: &str, space: &str) -> String {
    let each = value.bytes().map(|byte| match byte {
        b' ' => space.to_owned(),
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    each.collect()
}

/// Returns the part of the base64 encoding that does not depend on the text around `value`, for each of the three possible alignments of
/// `value`.
fn in_base64(value: &str) -> impl Iterator<Item = String> {
    ["", "-", "--"].into_iter().filter_map(move |before| {
        let text = [before, value].concat();
        let encoded = STANDARD.encode(&text);
        let own = (before.len() * 8).div_ceil(6)..text.len() * 8 / 6;
        encoded.get(own).map(str::to_owned)
    })
}

/// Redactor of one stream. Bytes that may be the beginning of a secret value are buffered until the next write.
pub struct Stream {
    redactor: Redactor,
    held: Vec<u8>,
    /// Number of bytes at the start of `held` that belong to a secret value.
    masked: usize,
    in_mask: bool,
}

impl Stream {
    /// Adds bytes. Returns, redacted, all buffered bytes up to the possible beginning of a secret value.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        self.emit(false)
    }

    /// Ends the stream. Returns the remaining bytes, redacted.
    pub fn finish(&mut self) -> Vec<u8> {
        self.emit(true)
    }

    fn emit(&mut self, last: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.held.len());
        let mut at = 0;
        let mut masked_until = self.masked;
        while let Some(rest) = self.held.get(at..) {
            let Some(&byte) = rest.first() else { break };
            if !last && self.redactor.may_begin_at(byte, rest) {
                break;
            }
            masked_until = masked_until.max(at + self.redactor.longest_at(byte, rest));
            self.in_mask = mask_or_copy(&mut out, byte, at < masked_until, self.in_mask);
            at += 1;
        }
        self.held.drain(..at);
        self.masked = masked_until.saturating_sub(at);
        out
    }
}

/// Appends `byte` to `out`; for a sequence of secret bytes, appends [`MASK`] once. Returns `secret`: whether the byte belongs to a secret
/// value.
fn mask_or_copy(out: &mut Vec<u8>, byte: u8, secret: bool, in_mask: bool) -> bool {
    match (secret, in_mask) {
        (true, false) => out.extend_from_slice(MASK.as_bytes()),
        (true, true) => {}
        (false, _) => out.push(byte),
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_pieces(redactor: &Redactor, text: &str, size: usize) -> String {
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size.max(1)) {
            out.extend(stream.push(piece));
        }
        out.extend(stream.finish());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn a_value_split_over_writes_is_masked() {
        let redactor = Redactor::new(["hunter22"]);
        assert_eq!(
            in_pieces(&redactor, "the password is hunter22.", 3),
            "the password is (redacted)."
        );
    }

    #[test]
    fn overlapping_values_are_masked_completely() {
        let redactor = Redactor::new(["abcd", "cdef", "abcdefgh"]);
        assert_eq!(
            redactor.text("xabcdefx abcdefghx"),
            "x(redacted)x (redacted)x"
        );
    }

    #[test]
    fn lines_and_json_forms_of_a_value_are_masked() {
        let redactor = Redactor::new(["-----BEGIN KEY-----\nMIIEvQIBADANBg\n"]);
        assert_eq!(redactor.text("  MIIEvQIBADANBg\n"), "  (redacted)\n");
        assert_eq!(
            redactor.text(r#"{"k":"-----BEGIN KEY-----\nMIIEvQIBADANBg"}"#),
            r#"{"k":"(redacted)"}"#
        );
    }

    #[test]
    fn escaped_forms_of_a_value_are_masked() {
        let redactor = Redactor::new(["p\"a<b>&'c d"]);
        for text in [
            r#"p\"a<b>&'c d"#,
            r#"p\"a\u003cb\u003e\u0026'c d"#,
            r#"p"a<b>&'\''c d"#,
            "p%22a%3Cb%3E%26%27c%20d",
            "p%22a%3Cb%3E%26%27c+d",
        ] {
            assert_eq!(
                redactor.text(&format!("[{text}]")),
                "[(redacted)]",
                "{text}"
            );
        }
    }

    #[test]
    fn value_in_base64_is_masked_at_any_offset() {
        let redactor = Redactor::new(["correct horse", "short"]);
        for before in ["", "u", "u:", "user:"] {
            let encoded = STANDARD.encode(format!("{before}correct horse and more"));
            let masked = redactor.text(&encoded);
            let (shown, after) = masked.split_once(MASK).unwrap();
            // A base64 character is not masked if it also encodes bits of a byte before or after the value.
            let of_neighbours =
                before.len().div_ceil(3) * 4 + " and more".len().div_ceil(3) * 4 + 4;
            assert!(shown.len() + after.len() <= of_neighbours, "{masked}");
        }
        let short = STANDARD.encode("short");
        assert_eq!(redactor.text(&short), short);
    }

    #[test]
    fn output_that_cannot_begin_a_secret_is_not_buffered() {
        let redactor = Redactor::new(["secret"]);
        let mut stream = redactor.stream();
        assert_eq!(stream.push(b"Enter a value: se"), b"Enter a value: ");
        assert_eq!(stream.push(b"a"), b"sea");
    }

    #[test]
    fn short_values_are_not_masked() {
        assert_eq!(Redactor::new(["no", ""]).text("no news"), "no news");
    }

    proptest! {
        #[test]
        fn no_secret_survives_in_pieces_of_any_size(
            secret in "[ab]{4,8}", other in "[abc]{4,6}", text in "[abc]{0,80}", size in 1usize..9
        ) {
            let redactor = Redactor::new([&secret, &other]);
            let out = in_pieces(&redactor, &text, size);
            prop_assert!(!out.contains(&secret) && !out.contains(&other), "{out}");
            prop_assert_eq!(&out, &redactor.text(&text));
        }

        #[test]
        fn text_without_secrets_is_unchanged(text in "[x-z \n]{0,200}", size in 1usize..9) {
            prop_assert_eq!(in_pieces(&Redactor::new(["abcd", "xabc"]), &text, size), text);
        }
    }
}
