//! Image references by tag and digest. Performs no I/O.

use std::fmt;

use crate::{
    error::Error,
    name::{self, ImageName, invalid},
};

/// Digest of a manifest or blob, with its algorithm: `sha256:…` or `sha512:…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Parses a digest.
    ///
    /// # Errors
    /// Returns [`Error::InvalidImageName`] unless the digest is `sha256:` with 64, or `sha512:` with 128, lower-case hex digits.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let digits = match text.split_once(':') {
            Some(("sha256", digits)) if digits.len() == 64 => digits,
            Some(("sha512", digits)) if digits.len() == 128 => digits,
            _ => {
                return Err(invalid(
                    text,
                    "a digest must be `sha256:` with 64 hex digits, or `sha512:` with 128 hex digits",
                ));
            }
        };
        if digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Ok(Self(text.to_owned()));
        }
        Err(invalid(
            text,
            "a digest must contain only digits and the letters a to f",
        ))
    }

    /// Returns the SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the digest as text, including its algorithm.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `bytes` have this digest.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish() == *self
    }

    /// Returns a hasher with the algorithm of this digest.
    pub(crate) fn hasher(&self) -> Hasher {
        if self.0.starts_with("sha512:") {
            Hasher::sha512()
        } else {
            Hasher::sha256()
        }
    }
}

/// Computes the digest of content that is read in pieces.
pub struct Hasher(Algorithm);

enum Algorithm {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// Returns a hasher for SHA-256.
    pub fn sha256() -> Self {
        use sha2::Digest as _;
        Self(Algorithm::Sha256(sha2::Sha256::new()))
    }

    fn sha512() -> Self {
        use sha2::Digest as _;
        Self(Algorithm::Sha512(sha2::Sha512::new()))
    }

    /// Adds the next piece of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        use sha2::Digest as _;
        match &mut self.0 {
            Algorithm::Sha256(hash) => hash.update(bytes),
            Algorithm::Sha512(hash) => hash.update(bytes),
        }
    }

    /// Returns the digest of all bytes so far.
    pub fn finish(self) -> Digest {
        use sha2::Digest as _;
        Digest(match self.0 {
            Algorithm::Sha256(hash) => format!("sha256:{}", hex::encode(hash.finalize())),
            Algorithm::Sha512(hash) => format!("sha512:{}", hex::encode(hash.finalize())),
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `text` has the form of a tag: `[A-Za-z0-9_][A-Za-z0-9._-]{0,127}`.
pub(crate) fn is_tag(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = !text.is_empty() && text.len() <= 128 && !text.starts_with(['.', '-']);
    fits && text.chars().all(plain)
}

/// Image reference: a repository with a tag, a digest or both. The digest takes precedence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef {
    name: ImageName,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl ImageRef {
    /// Parses `name[:tag][@digest]`. Without tag and digest, the tag is `latest`, as in Docker.
    ///
    /// # Errors
    /// Returns [`Error::InvalidImageName`] with the reason.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refuse = |why: String| invalid(text, why);
        name::refuse_odd_text(text).map_err(refuse)?;
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(Digest::parse(digest)?)),
            None => (text, None),
        };
        let slash = rest.rfind('/').map_or(0, |at| at + 1);
        let (path, tag) = rest
            .get(slash..)
            .and_then(|last| last.find(':'))
            .map(|at| slash + at)
            .map_or((rest, None), |at| {
                (rest.get(..at).unwrap_or_default(), rest.get(at + 1..))
            });
        let name = name::split(path).map_err(refuse)?;
        match (tag, digest) {
            (None, None) => Self::tagged(name, "latest"),
            (Some(tag), digest) => Ok(Self {
                digest,
                ..Self::tagged(name, tag)?
            }),
            (None, digest) => Ok(Self {
                name,
                tag: None,
                digest,
            }),
        }
    }

    /// Returns an image reference by tag.
    ///
    /// # Errors
    /// Returns [`Error::InvalidImageName`] unless the tag matches `[A-Za-z0-9_][A-Za-z0-9._-]{0,127}`.
    pub fn tagged(name: ImageName, tag: &str) -> Result<Self, Error> {
        if is_tag(tag) {
            return Ok(Self {
                name,
                tag: Some(tag.to_owned()),
                digest: None,
            });
        }
        Err(invalid(
            tag,
            "a tag must have at most 128 letters, digits, `.`, `_` or `-`, and must not start with \
             `.` or `-`",
        ))
    }

    /// Returns an image reference by digest.
    pub fn by_digest(name: ImageName, digest: Digest) -> Self {
        Self {
            name,
            tag: None,
            digest: Some(digest),
        }
    }

    /// Returns the repository.
    pub fn name(&self) -> &ImageName {
        &self.name
    }

    /// Returns the tag, if any.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest, if any.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        self.tag
            .as_ref()
            .map_or(Ok(()), |tag| write!(f, ":{tag}"))?;
        self.digest
            .as_ref()
            .map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[rstest]
    #[case("alpine", "docker.io/library/alpine:latest")]
    #[case("alpine:3.20", "docker.io/library/alpine:3.20")]
    #[case("host:5000/x", "host:5000/x:latest")]
    #[case("host:5000/x:A_1.b-c", "host:5000/x:A_1.b-c")]
    #[case(&format!("host:5000/x@{D}"), &format!("host:5000/x@{D}"))]
    #[case(&format!("a/x:1@{D}"), &format!("docker.io/a/x:1@{D}"))]
    fn valid_image_references_are_parsed(#[case] text: &str, #[case] canonical: &str) {
        let image = ImageRef::parse(text).unwrap();
        assert_eq!(image.to_string(), canonical);
        assert_eq!(ImageRef::parse(canonical).unwrap(), image);
    }

    #[rstest]
    #[case("x:")]
    #[case("x:-a")]
    #[case("x:a b")]
    #[case("x@sha256:00")]
    #[case("x@")]
    #[case("X:1")]
    #[case("host:5000")]
    #[case("x:1:2")]
    #[case(":1")]
    fn invalid_image_references_are_refused(#[case] text: &str) {
        if text == "host:5000" {
            assert_eq!(
                ImageRef::parse(text).unwrap().tag(),
                Some("5000"),
                "as docker reads it"
            );
            return;
        }
        assert_eq!(
            ImageRef::parse(text).unwrap_err().reason().as_str(),
            "InvalidImageName"
        );
    }

    #[test]
    fn digests_are_checked() {
        assert_eq!(
            Digest::of(b"").as_str(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        for text in [
            "",
            "sha256:",
            "md5:00",
            &D.to_uppercase(),
            &D.replace('0', "g"),
        ] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
        assert!(Digest::parse(&format!("sha512:{}", "a".repeat(128))).is_ok());
    }

    #[test]
    fn digest_matches_bytes_by_its_own_algorithm() {
        let sha512 = "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e";
        for digest in [
            Digest::of(b""),
            Digest::parse(&format!("sha512:{sha512}")).unwrap(),
        ] {
            assert!(digest.matches(b""));
            assert!(!digest.matches(b"x"));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_image_or_refused(text in "\\PC{0,40}") {
            if let Ok(image) = ImageRef::parse(&text) {
                proptest::prop_assert_eq!(ImageRef::parse(&image.to_string()).unwrap(), image);
            }
        }

        #[test]
        fn well_formed_image_reference_is_accepted(
            host in "([a-z0-9]{1,5}(\\.[a-z0-9]{1,3}){1,2}|localhost)(:[1-9][0-9]{0,3})?/",
            path in "[a-z0-9]{1,4}((\\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,5}){0,3}",
            tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"),
            digest in proptest::option::of("[0-9a-f]{64}"),
        ) {
            let tail = tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
            let by = digest.as_ref().map(|digest| format!("@sha256:{digest}")).unwrap_or_default();
            let text = format!("{host}{path}{tail}{by}");
            let image = ImageRef::parse(&text).unwrap();
            let expected = tag.or_else(|| digest.is_none().then(|| "latest".to_owned()));
            proptest::prop_assert_eq!(image.tag().map(str::to_owned), expected);
            proptest::prop_assert_eq!(image.digest().is_some(), digest.is_some());
            proptest::prop_assert_eq!(ImageRef::parse(&image.to_string()).unwrap(), image);
        }
    }
}
