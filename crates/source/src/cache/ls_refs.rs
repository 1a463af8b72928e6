//! Command `ls-refs` of version 2 of the git protocol (<https://git-scm.com/docs/protocol-v2#_ls_refs>): builds the request, and parses the
//! responses of a server. Performs no I/O.

use std::collections::BTreeSet;

use super::refs::{Listing, names};
use crate::{reference::Reference, url::RepositoryUrl};

/// First packets of the response to `info/refs`. Servers may omit them in version 2:
/// <https://git-scm.com/docs/gitprotocol-http#_smart_server_response>.
const SERVICE: &[u8] = b"001e# service=git-upload-pack\n0000";

const FLUSH: &[u8] = b"0000";
const DELIMITER: &[u8] = b"0001";

/// Maximum length of a packet, including the four bytes of its length: <https://git-scm.com/docs/gitprotocol-common#_pkt_line_format>.
const MAX_PACKET_BYTES: usize = 65_520;
/// Maximum number of lines of an advertisement. Git sends less than ten.
const MAX_CAPABILITIES: usize = 100;
/// Maximum number of references in a response. A server also returns references that only start with a requested name.
const MAX_REFERENCES: usize = 10_000;
/// Maximum length of a name in a response, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum number of requested names.
const MAX_NAMES: usize = 4096;

/// Query of references with command `ls-refs`. Methods return `None` if only a git process can list the references or report the failure.
pub struct LsRefs {
    remote: String,
    names: BTreeSet<String>,
}

impl LsRefs {
    /// Maximum size of an advertisement, in bytes.
    pub const ADVERTISEMENT_BYTES: usize = 64 << 10;
    /// Maximum size of a response, in bytes.
    pub const RESPONSE_BYTES: usize = 1 << 20;

    /// Returns the query of `references`. `None` if all references are commit ids, or if there are more than 4096 names.
    pub(super) fn new(url: &RepositoryUrl, references: &BTreeSet<Reference>) -> Option<Self> {
        let names: BTreeSet<String> = references.iter().flat_map(names).collect();
        (1..=MAX_NAMES).contains(&names.len()).then(|| Self {
            remote: url.remote().to_owned(),
            names,
        })
    }

    /// Returns the body of the request to `git-upload-pack`. `advertisement` is the response to `info/refs?service=git-upload-pack`, in which the
    /// server must offer version 2, `ls-refs` and SHA-1. Sends only capabilities that the server offers, because servers refuse others.
    pub fn request(&self, advertisement: &[u8]) -> Option<Vec<u8>> {
        if advertisement.len() > Self::ADVERTISEMENT_BYTES {
            return None;
        }
        let advertisement = advertisement.strip_prefix(SERVICE).unwrap_or(advertisement);
        let lines = lines(advertisement, MAX_CAPABILITIES)?;
        let (version, capabilities) = lines.split_first()?;
        let offers = |name: &str| {
            capabilities.iter().any(|capability| {
                let rest = capability.strip_prefix(name.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
            })
        };
        let is_sha1 =
            !offers("object-format") || capabilities.contains(&&b"object-format=sha1"[..]);
        if *version != b"version 2" || !offers("ls-refs") || !is_sha1 {
            return None;
        }
        let mut request = packet("command=ls-refs");
        if offers("agent") {
            request.extend(packet(concat!("agent=alustan/", env!("CARGO_PKG_VERSION"))));
        }
        if offers("object-format") {
            request.extend(packet("object-format=sha1"));
        }
        request.extend(DELIMITER);
        request.extend(packet("peel"));
        request.extend(packet("symrefs"));
        for name in self.names.iter().filter(|name| !name.ends_with("^{}")) {
            request.extend(packet(&format!("ref-prefix {name}")));
        }
        request.extend(FLUSH);
        Some(request)
    }

    /// Returns the requested references in `response`, the response to [`request`](Self::request). `None` if the response is an error message
    /// of the server, malformed, incomplete, or exceeds a limit.
    pub fn listing(&self, response: &[u8]) -> Option<Listing> {
        if response.len() > Self::RESPONSE_BYTES {
            return None;
        }
        let mut text = String::new();
        for line in lines(response, MAX_REFERENCES)? {
            self.list(line, &mut text)?;
        }
        Some(Listing::new(&self.remote, text))
    }

    /// Appends the reference in `line` to `text` in the format of `git ls-remote --symref`, if it is requested.
    fn list(&self, line: &[u8], text: &mut String) -> Option<()> {
        let mut words = line.split(|byte| *byte == b' ');
        let (id, name) = (id(words.next()?)?, words.next()?);
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return None;
        }
        let (mut target, mut peeled) = (None, None);
        for attribute in words {
            if let Some(name) = attribute.strip_prefix(b"symref-target:") {
                target = Some(plain(name)?);
            } else if let Some(commit) = attribute.strip_prefix(b"peeled:") {
                peeled = Some(self::id(commit)?);
            }
        }
        // Bytes that are not UTF-8 cannot be part of a requested name.
        let name = std::str::from_utf8(name).unwrap_or_default();
        if self.names.contains(name) {
            if let Some(target) = target {
                text.extend(["ref: ", target, "\t", name, "\n"]);
            }
            text.extend([id, "\t", name, "\n"]);
        }
        let peeled_name = format!("{name}^{{}}");
        if let Some(peeled) = peeled.filter(|_| self.names.contains(&peeled_name)) {
            text.extend([peeled, "\t", &peeled_name, "\n"]);
        }
        Some(())
    }
}

/// Returns the packet with `text` as a line.
fn packet(text: &str) -> Vec<u8> {
    // Four bytes of length and a line feed.
    format!("{:04x}{text}\n", text.len() + 5).into_bytes()
}

/// Returns the packets of `input` without line feeds at their ends. `None` if a packet is malformed, if `input` has more than `most` packets, or
/// if it does not end with its first flush packet.
fn lines(mut input: &[u8], most: usize) -> Option<Vec<&[u8]>> {
    let mut lines = Vec::new();
    while input != FLUSH {
        let (length, rest) = input.split_at_checked(4)?;
        let is_hex = length.iter().all(u8::is_ascii_hexdigit);
        let length = std::str::from_utf8(length).ok().filter(|_| is_hex)?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if !(5..=MAX_PACKET_BYTES).contains(&length) || lines.len() == most {
            return None;
        }
        let (line, rest) = rest.split_at_checked(length - 4)?;
        lines.push(line.strip_suffix(b"\n").unwrap_or(line));
        input = rest;
    }
    Some(lines)
}

/// Returns `bytes` if they are a SHA-1 id in hexadecimal digits.
fn id(bytes: &[u8]) -> Option<&str> {
    let is_id = bytes.len() == 40 && bytes.iter().all(u8::is_ascii_hexdigit);
    std::str::from_utf8(bytes).ok().filter(|_| is_id)
}

/// Returns `name` if it can be a field of a [`Listing`].
fn plain(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok()?;
    let is_plain = name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
    Some(name).filter(|_| is_plain)
}

#[cfg(test)]
mod tests;
