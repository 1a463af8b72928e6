//! Canaries: unique secret values that may appear in a few known places only. The search also finds canaries in encoded form.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use memchr::memmem;
use serde_json::Value;

/// Minimum length of a part of a value that [`Canaries::all_of`] adds to the search, in bytes. A shorter part may also occur by chance.
const SHORT: usize = 12;
/// First bytes of a gzip archive.
const GZIP: &[u8] = &[0x1f, 0x8b, 0x08];

/// Canaries of a test, by the name of the input that contains them.
#[derive(Default)]
pub struct Canaries {
    cores: BTreeMap<String, String>,
}

/// Searches bytes for canaries.
pub struct Searcher {
    patterns: AhoCorasick,
    names: Vec<String>,
}

impl Canaries {
    /// Creates a secret value for the input `name`, of letters and digits only, which URLs, JSON and HCL do not escape.
    pub fn plain(&mut self, name: &str) -> String {
        let mut random = [0; 12];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .expect("random bytes");
        let core = format!("canary{}z", hex::encode(random));
        self.known(name, &core);
        core
    }

    /// Creates a secret value for the input `name`: letters and digits between special characters. URLs, JSON and HCL escape the special
    /// characters, so the search looks for the letters and digits only. The search therefore also finds a partly redacted value.
    pub fn odd(&mut self, name: &str) -> String {
        format!("p\"a\\<{}>&é %2f$'", self.plain(name))
    }

    /// Adds `value` to the search, under `name`.
    pub fn known(&mut self, name: &str, value: &str) {
        self.cores.insert(name.to_owned(), value.to_owned());
    }

    /// Adds the secret parts of `value` to the search: the strings in JSON; password, path and query values of a URL; each line of a key;
    /// any other value as a whole. Skips certificates, and parts of less than 12 bytes, which may occur by chance.
    pub fn all_of(&mut self, name: &str, value: &str) {
        for part in parts(value) {
            if part.len() >= SHORT && !self.cores.values().any(|core| *core == part) {
                self.known(&format!("{name}, {}", self.cores.len()), &part);
            }
        }
    }

    /// Returns the number of values in the search.
    pub fn count(&self) -> usize {
        self.cores.len()
    }

    /// Returns a searcher for all values: raw, in hex, in base64 of every alignment and alphabet, in base64 within base64, and escaped
    /// as in a URL or in JSON.
    pub fn searcher(&self) -> Searcher {
        let (patterns, names): (Vec<_>, Vec<_>) = self
            .cores
            .iter()
            .flat_map(|(name, core)| shapes(core).into_iter().map(move |shape| (shape, name)))
            .unzip();
        Searcher {
            patterns: AhoCorasick::new(patterns).expect("patterns"),
            names: names.into_iter().cloned().collect(),
        }
    }
}

impl Searcher {
    /// Returns the names of the canaries in `bytes`, and in gzip archives within them.
    pub fn search(&self, bytes: &[u8]) -> BTreeSet<&str> {
        let matches = self.patterns.find_overlapping_iter(bytes);
        let mut names: BTreeSet<&str> = matches
            .map(|hit| self.names[hit.pattern().as_usize()].as_str())
            .collect();
        let mut at = 0;
        while let Some(begin) = position(bytes, at, GZIP) {
            let mut text = Vec::new();
            // Bytes after the end of the archive cause an error. The text that was unpacked before the error is searched.
            let _ = MultiGzDecoder::new(&bytes[begin..]).read_to_end(&mut text);
            if !text.is_empty() {
                names.extend(self.search(&text));
            }
            at = begin + GZIP.len();
        }
        names
    }
}

fn parts(value: &str) -> Vec<String> {
    if let Ok(url) = reqwest::Url::parse(value)
        && url.has_host()
    {
        let query = url.query_pairs().map(|(_, value)| value.into_owned());
        let others = [url.password().unwrap_or_default(), url.path()];
        return query.chain(others.map(str::to_owned)).collect();
    }
    match serde_json::from_str(value) {
        Ok(Value::Object(object)) => object
            .values()
            .flat_map(|value| parts(&text(value)))
            .collect(),
        Ok(Value::Array(array)) => array.iter().flat_map(|value| parts(&text(value))).collect(),
        _ => match STANDARD.decode(value).map(String::from_utf8) {
            // Field `auth` of a docker configuration: base64 of `user:password`.
            Ok(Ok(login)) if login.contains(':') => login.split(':').map(str::to_owned).collect(),
            _ if value.contains("-----BEGIN CERTIFICATE") => Vec::new(),
            _ if value.starts_with("-----BEGIN") => value
                .lines()
                .filter(|line| !line.starts_with('-'))
                .map(str::to_owned)
                .collect(),
            _ => vec![value.to_owned()],
        },
    }
}

/// Returns a string unchanged, any other value as JSON.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn position(bytes: &[u8], from: usize, word: &[u8]) -> Option<usize> {
    memmem::find(&bytes[from..], word).map(|at| from + at)
}

fn shapes(core: &str) -> BTreeSet<String> {
    let mut shapes = BTreeSet::from([core.to_owned()]);
    let json = serde_json::Value::from(core).to_string();
    shapes.insert(json.trim_matches('"').to_owned());
    shapes.insert(json.trim_matches('"').replace('/', "\\/"));
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let escaped = core.bytes().map(|byte| {
        if plain(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    shapes.insert(escaped.collect());
    shapes.insert(hex::encode(core));
    shapes.insert(hex::encode(core).to_uppercase());
    for once in in_base64(core.as_bytes()) {
        shapes.extend(in_base64(once.as_bytes()));
        shapes.insert(once.replace('+', "-").replace('/', "_"));
        shapes.insert(once);
    }
    shapes
}

/// Returns the part of the base64 encoding that depends on `bytes` alone, for each alignment.
fn in_base64(bytes: &[u8]) -> [String; 3] {
    [0, 1, 2].map(|before: usize| {
        let text = [&vec![0; before][..], bytes].concat();
        let from = (before * 8).div_ceil(6);
        let to = text.len() * 8 / 6;
        STANDARD.encode(&text)[from..to].to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn canaries_are_found_in_every_encoding_and_nothing_else() {
        let mut canaries = Canaries::default();
        let odd = canaries.odd("odd");
        canaries.known("key", "AB+/cd/ef+ghijklmnop");
        let searcher = canaries.searcher();
        let names = |text: &[u8]| searcher.search(text).into_iter().collect::<Vec<_>>();
        for before in ["", "x", "xy"] {
            let text = format!("{before}{odd}after");
            let once = STANDARD.encode(&text);
            let twice = STANDARD.encode(format!("{{\"auth\":\"{once}\"}}"));
            let json = serde_json::Value::from(text.as_str()).to_string();
            let mut archive = GzEncoder::new(b"head".to_vec(), Compression::default());
            archive.write_all(once.as_bytes()).unwrap();
            let archive = [archive.finish().unwrap(), b"tail".to_vec()].concat();
            for shape in [text.as_str(), &hex::encode(&text), &once, &twice, &json] {
                assert_eq!(names(shape.as_bytes()), ["odd"], "{shape}");
            }
            assert_eq!(names(&archive), ["odd"]);
        }
        assert_eq!(names(b"?key=AB%2B%2Fcd%2Fef%2Bghijklmnop&"), ["key"]);
        assert_eq!(names(br#""AB+\/cd\/ef+ghijklmnop""#), ["key"]);
        assert!(names(b"AB+/cd/ef+ghijklmno canary \x1f\x8b\x08 no archive").is_empty());
    }

    #[test]
    fn secret_parts_of_a_value_are_extracted() {
        for (value, expected) in [
            (
                "a password of some length",
                &["a password of some length"][..],
            ),
            ("short", &[]),
            (
                "postgres://me:a-long-password@host.example.com/database?sslmode=disable&key=another-long-one",
                &["another-long-one", "a-long-password"],
            ),
            (
                "https://hooks.example.com/services/T0/B0",
                &["/services/T0/B0"],
            ),
            ("https://hooks.example.com", &[]),
            (
                "-----BEGIN CERTIFICATE-----\nbGluZSBvbmUgb2YgdHdv\n-----END CERTIFICATE-----",
                &[],
            ),
            (
                r#"{"auths": {"registry.example.com": {"auth": "bWU6YS1sb25nLXBhc3N3b3Jk"}}}"#,
                &["a-long-password"],
            ),
            (
                "-----BEGIN KEY-----\nbGluZSBvbmUgb2YgdHdv\nbGluZSB0d28=\n-----END KEY-----\n",
                &["bGluZSBvbmUgb2YgdHdv", "bGluZSB0d28="],
            ),
        ] {
            let mut canaries = Canaries::default();
            canaries.all_of("a", value);
            assert_eq!(
                canaries.cores.values().collect::<Vec<_>>(),
                expected,
                "{value}"
            );
        }
    }
}
