//! Encrypted cookie with the token of a user.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::Instant;
use tracing::warn;

use crate::error::PageError;

/// Time after which a cookie is refused, in seconds.
const MAX_AGE_SECONDS: i64 = 12 * 60 * 60;

/// Maximum length of the value of a cookie. Browsers store at most 4,096 bytes of name, value and attributes.
const MAX_VALUE_BYTES: usize = 3800;

/// Maximum number of keys: the current key, and the next or the previous one.
const MAX_KEYS: usize = 2;

/// Length of a key, in bytes.
const KEY_BYTES: usize = 32;

/// Length of the expiry at the beginning of the sealed text, in bytes.
const EXPIRY_BYTES: usize = 8;

/// Maximum age of loaded keys. Older keys are reloaded from the file.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of cookies with the name of the session cookie that are tried. Another site of the same host may set such cookies.
const MAX_COOKIES: usize = 4;

/// Keys of cookies and session ids, in a file with one key in base64 per line. The first key encrypts; all keys decrypt. Changes of the file apply
/// without a restart.
pub struct CookieKeys {
    file: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    keys: Arc<[Key]>,
    at: Instant,
}

struct Key {
    seal: LessSafeKey,
    mac: hmac::Key,
}

impl Key {
    fn parse(line: &str) -> Result<Self, String> {
        let bytes = STANDARD
            .decode(line)
            .ok()
            .filter(|bytes| bytes.len() == KEY_BYTES)
            .ok_or_else(|| format!("expected {KEY_BYTES} random bytes in base64 on each line"))?;
        let seal = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|error| error.to_string())?;
        // The key of session ids is derived, because a key must have one purpose.
        let root = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let mac = hmac::sign(&root, b"alustan session id");
        Ok(Self {
            seal: LessSafeKey::new(seal),
            mac: hmac::Key::new(hmac::HMAC_SHA256, mac.as_ref()),
        })
    }
}

impl CookieKeys {
    /// Reads the keys in `file`.
    ///
    /// # Errors
    /// If the file cannot be read, or does not contain one or two keys.
    pub fn load(file: PathBuf) -> Result<Self, String> {
        let keys = keys_in(&file)?;
        Ok(Self {
            file,
            loaded: Mutex::new(Loaded {
                keys,
                at: Instant::now(),
            }),
        })
    }

    /// Returns the current keys. If the file has become unreadable, logs a warning and returns the previous keys.
    fn current(&self) -> Arc<[Key]> {
        let mut loaded = self.loaded.lock();
        if loaded.at.elapsed() >= RELOAD_INTERVAL {
            loaded.at = Instant::now();
            match keys_in(&self.file) {
                Ok(keys) => loaded.keys = keys,
                Err(error) => {
                    warn!(%error, "failed to reload the cookie keys; keeping the current ones");
                }
            }
        }
        loaded.keys.clone()
    }

    /// Returns the id of the session with `credentials`. `kind` separates the ids of different kinds of credentials.
    pub(crate) fn session_id(&self, kind: &str, credentials: &[&str]) -> String {
        let keys = self.current();
        let mut id = String::new();
        if let Some(key) = keys.first() {
            let mut context = hmac::Context::with_key(&key.mac);
            for part in [kind].iter().chain(credentials) {
                context.update(&(part.len() as u64).to_be_bytes());
                context.update(part.as_bytes());
            }
            URL_SAFE_NO_PAD.encode_string(context.sign(), &mut id);
        }
        id
    }
}

fn keys_in(file: &Path) -> Result<Arc<[Key]>, String> {
    let of_file = |error: String| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
    let keys = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(Key::parse)
        .collect::<Result<Arc<[Key]>, String>>()
        .map_err(of_file)?;
    match keys.len() {
        1..=MAX_KEYS => Ok(keys),
        count => Err(of_file(format!("expected one or two keys, found {count}"))),
    }
}

/// Cookie with the encrypted token of the user.
pub struct SessionCookie {
    keys: CookieKeys,
    /// Whether browsers send the cookie over HTTPS only.
    secure: bool,
}

impl SessionCookie {
    /// Creates a cookie that is encrypted with `keys`. `secure`: whether browsers access the page over HTTPS. If false, the cookie is also sent over
    /// plain HTTP.
    pub fn new(keys: CookieKeys, secure: bool) -> Self {
        Self { keys, secure }
    }

    /// Returns the id of the sessions of `user`. It stays the same when a proxy refreshes the token.
    pub(crate) fn session_id(&self, user: &str) -> String {
        self.keys.session_id("token", &[user])
    }

    /// Returns the header `Set-Cookie` with the encrypted `token`.
    ///
    /// # Errors
    /// If the cookie is longer than browsers store.
    pub(crate) fn seal(&self, token: &str, now: Timestamp) -> Result<HeaderValue, PageError> {
        let failed = || PageError::Unavailable("failed to encrypt the cookie".to_owned());
        let expiry = now.as_second().saturating_add(MAX_AGE_SECONDS);
        let mut text = expiry.to_be_bytes().to_vec();
        text.extend_from_slice(token.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        let random = SystemRandom::new();
        random.fill(&mut nonce).map_err(|_| failed())?;
        let keys = self.keys.current();
        let key = keys.first().ok_or_else(failed)?;
        key.seal
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(self.name()),
                &mut text,
            )
            .map_err(|_| failed())?;
        let value = URL_SAFE_NO_PAD.encode([nonce.as_slice(), &text].concat());
        if value.len() > MAX_VALUE_BYTES {
            return Err(PageError::Invalid(format!(
                "the token has {} bytes; browsers store cookies with tokens of at most {} bytes. Use a token without group claims, or a proxy that \
                 sends the token in the header Authorization",
                token.len(),
                max_token_bytes()
            )));
        }
        self.header(&value, MAX_AGE_SECONDS)
    }

    /// Returns the header `Set-Cookie` that removes the cookie.
    ///
    /// # Errors
    /// None in practice: the value consists of constants.
    pub(crate) fn removal(&self) -> Result<HeaderValue, PageError> {
        self.header("", 0)
    }

    /// Returns the token in the cookie of a request. `None`: the request has no cookie, or the cookie is expired or cannot be decrypted.
    pub(crate) fn open(&self, headers: &HeaderMap, now: Timestamp) -> Option<String> {
        cookies(headers, self.name())
            .take(MAX_COOKIES)
            .find_map(|value| self.unseal(value, now))
    }

    fn unseal(&self, value: &str, now: Timestamp) -> Option<String> {
        if value.len() > MAX_VALUE_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let text = self.keys.current().iter().find_map(|key| {
            let mut sealed = sealed.to_vec();
            let text = key.seal.open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(self.name()),
                &mut sealed,
            );
            text.ok().map(|text| text.to_vec())
        })?;
        let (expiry, token) = text.split_first_chunk::<EXPIRY_BYTES>()?;
        if i64::from_be_bytes(*expiry) <= now.as_second() {
            return None;
        }
        String::from_utf8(token.to_vec()).ok()
    }

    /// Returns the name of the cookie. Browsers accept the prefix `__Host-` only over HTTPS, and other hosts of the domain cannot set such a cookie.
    fn name(&self) -> &'static str {
        if self.secure {
            "__Host-alustan"
        } else {
            "alustan"
        }
    }

    fn header(&self, value: &str, max_age: i64) -> Result<HeaderValue, PageError> {
        let name = self.name();
        let secure = if self.secure { "; Secure" } else { "" };
        let text =
            format!("{name}={value}; Max-Age={max_age}; Path=/; HttpOnly; SameSite=Lax{secure}");
        let mut header = HeaderValue::from_str(&text)
            .map_err(|_| PageError::Unavailable("failed to create the cookie".to_owned()))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

/// Returns the values of the cookies `name` in the headers of a request.
pub(crate) fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(move |(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Returns the length of the longest token whose cookie has at most [`MAX_VALUE_BYTES`].
fn max_token_bytes() -> usize {
    MAX_VALUE_BYTES / 4 * 3 - NONCE_LEN - EXPIRY_BYTES - AES_256_GCM.tag_len()
}

#[cfg(test)]
mod tests;
