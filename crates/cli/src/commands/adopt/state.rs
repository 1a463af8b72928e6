//! Summary of an existing state. Only names of providers, versions and counts are read; values of resources and outputs are not kept.

use std::io::Read as _;

use alustan_state::error_text::place_in_json;
use alustan_state::head::StateHead;
use flate2::read::GzDecoder;
use serde::Deserialize;

/// Maximum size of a decompressed state, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum length of a version or lineage in messages, in characters.
const MAX_TEXT: usize = 64;
/// Host of the registry in provider addresses of `OpenTofu`.
const OPENTOFU_REGISTRY: &str = "registry.opentofu.org/";

/// Summary of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) lineage: String,
    pub(crate) serial: u64,
    /// Number of resources and outputs.
    pub(crate) item_count: usize,
    /// Version of the engine that wrote the state.
    pub(crate) version: Option<String>,
    /// Whether a provider comes from the registry of `OpenTofu`.
    pub(crate) is_opentofu: bool,
}

#[derive(Deserialize)]
struct Content {
    terraform_version: Option<String>,
    backend: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    provider: Option<String>,
}

impl Summary {
    /// Parses a state file.
    ///
    /// # Errors
    /// Reason why `bytes` is not a state. It contains no value of the state.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let content: Content =
            serde_json::from_slice(bytes).map_err(|error| place_in_json(&error))?;
        if content.backend.is_some() {
            let why = "it is the backend configuration of an initialized folder. The state is in \
                       that backend: see docs/migration-plain.md";
            return Err(why.to_owned());
        }
        let head = StateHead::read(bytes).map_err(|error| place_in_json(&error))?;
        let (Some(lineage), Some(serial)) = (head.lineage, head.serial) else {
            return Err("lineage or serial is missing".to_owned());
        };
        let mut providers = content.resources.iter().flat_map(|each| &each.provider);
        Ok(Self {
            lineage: printable(&lineage),
            serial,
            item_count: head.item_count,
            version: content.terraform_version.as_deref().map(printable),
            is_opentofu: providers.any(|provider| provider.contains(OPENTOFU_REGISTRY)),
        })
    }

    /// Parses the value of key `tfstate` in a Secret of the `kubernetes` backend: a state that is compressed with gzip.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self, String> {
        let mut state = Vec::new();
        let mut decoder = GzDecoder::new(bytes).take(MAX_BYTES);
        decoder
            .read_to_end(&mut state)
            .map_err(|error| format!("it is not compressed with gzip: {error}"))?;
        Self::read(&state)
    }

    /// Formats the summary for the report.
    pub(crate) fn describe(&self) -> String {
        let version = self.version.as_deref().unwrap_or("unknown");
        format!(
            "serial {}, lineage {}, {} resources and outputs, written by engine version {version}",
            self.serial, self.lineage, self.item_count
        )
    }
}

/// Returns the first characters of `text`, without control characters.
fn printable(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;

    const STATE: &str = r#"{"version": 4, "terraform_version": "1.10.1", "serial": 3, "lineage": "l",
        "outputs": {"password": {"value": "x3-secret"}},
        "resources": [{"provider": "provider[\"registry.opentofu.org/hashicorp/null\"]", "instances": []}]}"#;

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn state_of_a_secret_is_summarized_without_values() {
        let summary = Summary::unpack(&packed(STATE)).unwrap();
        let wanted = Summary {
            lineage: "l".into(),
            serial: 3,
            item_count: 2,
            version: Some("1.10.1".into()),
            is_opentofu: true,
        };
        assert_eq!(summary, wanted);
        assert!(!summary.describe().contains("x3-secret"));
    }

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [
            ("{}", "lineage or serial is missing"),
            ("no state", "line 1"),
            (
                r#"{"version": 3, "backend": {"type": "s3"}}"#,
                "docs/migration-plain.md",
            ),
        ] {
            let error = Summary::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(Summary::unpack(STATE.as_bytes()).is_err());
        let cut = packed(STATE);
        assert!(Summary::unpack(&cut[..cut.len() / 2]).is_err());
    }
}
