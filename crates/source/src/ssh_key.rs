//! Normalises private ssh keys from Secrets. Performs no I/O.

use base64::prelude::*;

use crate::{error::Error, secret::SecretBytes};

const OPENSSH_MAGIC: &[u8] = b"openssh-key-v1\0";

/// Returns the key in the form that OpenSSH requires: LF line endings, no text before the first line, one final newline.
///
/// # Errors
/// [`Error::SshKeyInvalid`] if `key` is not a private key, [`Error::SshKeyEncrypted`] if `key` has a passphrase.
pub(crate) fn normalise(key: &SecretBytes) -> Result<SecretBytes, Error> {
    let invalid = |why| Error::SshKeyInvalid { why };
    let text = std::str::from_utf8(key.expose())
        .map_err(|_| invalid("the key is not valid UTF-8"))?
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let text = text.trim();
    if text.is_empty() {
        return Err(invalid("the key is empty"));
    }
    if text.starts_with("ssh-") || text.starts_with("ecdsa-") {
        return Err(invalid("the key is a public key; set the private key"));
    }
    if text.starts_with("PuTTY-User-Key-File") {
        return Err(invalid(
            "the key is in PuTTY format; export the key in OpenSSH format",
        ));
    }
    if !text.starts_with("-----BEGIN ") || !text.contains("PRIVATE KEY-----") {
        return Err(invalid(
            "the key does not start with `-----BEGIN … PRIVATE KEY-----`",
        ));
    }
    if is_encrypted(text) {
        return Err(Error::SshKeyEncrypted);
    }
    Ok(SecretBytes::new(format!("{text}\n")))
}

fn is_encrypted(text: &str) -> bool {
    text.contains("BEGIN ENCRYPTED PRIVATE KEY")
        || text.contains("Proc-Type: 4,ENCRYPTED")
        || openssh_cipher(text).is_some_and(|cipher| cipher != b"none")
}

/// Returns the name of the cipher of a key in OpenSSH's format. The key begins with magic bytes, the length of the name in four bytes, and the
/// name.
fn openssh_cipher(text: &str) -> Option<Vec<u8>> {
    let body: String = text
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    let bytes = BASE64_STANDARD.decode(body.replace([' ', '\t'], "")).ok()?;
    let rest = bytes.strip_prefix(OPENSSH_MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.get(..length).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn openssh(cipher: &str) -> String {
        let mut body = OPENSSH_MAGIC.to_vec();
        body.extend(u32::try_from(cipher.len()).unwrap().to_be_bytes());
        body.extend(cipher.as_bytes());
        body.extend(b"rest");
        let body = BASE64_STANDARD.encode(body);
        format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----")
    }

    fn reason(text: &str) -> &'static str {
        normalise(&SecretBytes::new(text))
            .err()
            .map_or("ok", |error| error.reason().as_str())
    }

    #[test]
    fn line_endings_and_missing_newline_are_normalised() {
        let key = openssh("none");
        let pasted = format!("\u{feff}\r\n{}", key.replace('\n', "\r\n"));
        let read = normalise(&SecretBytes::new(pasted)).ok().unwrap();
        assert_eq!(read.expose(), format!("{key}\n").as_bytes());
    }

    #[rstest]
    #[case::openssh(&openssh("aes256-ctr"))]
    #[case::pkcs8(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----"
    )]
    #[case::pem(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n-----END RSA PRIVATE KEY-----"
    )]
    fn key_with_a_passphrase_is_refused(#[case] key: &str) {
        assert_eq!(reason(key), "SshKeyEncrypted");
    }

    #[rstest]
    #[case("")]
    #[case(" \n")]
    #[case("ssh-ed25519 AAAA me@host")]
    #[case("PuTTY-User-Key-File-3: ssh-ed25519")]
    #[case("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----")]
    #[case("hunter2")]
    fn text_without_a_private_key_is_refused(#[case] key: &str) {
        assert_eq!(reason(key), "SshKeyInvalid");
    }
}
