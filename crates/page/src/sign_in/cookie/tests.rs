use tempfile::TempDir;

use super::*;

/// Folder with a key file. Each character of `keys` is one key.
fn folder(keys: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, keys);
    folder
}

fn write(folder: &TempDir, keys: &str) {
    let lines = keys
        .bytes()
        .map(|byte| STANDARD.encode([byte; KEY_BYTES]) + "\n");
    std::fs::write(folder.path().join("keys"), lines.collect::<String>()).unwrap();
}

fn cookie(folder: &TempDir) -> SessionCookie {
    SessionCookie::new(CookieKeys::load(folder.path().join("keys")).unwrap(), true)
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// Returns the pair `name=value` of a sealed token.
fn sealed(cookie: &SessionCookie, token: &str) -> String {
    let header = cookie.seal(token, now()).unwrap();
    let text = header.to_str().unwrap();
    text.split(';').next().unwrap().to_owned()
}

fn headers(pairs: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::COOKIE, pairs.parse().unwrap())])
}

#[test]
fn cookie_round_trip_returns_the_token() {
    let cookie = cookie(&folder("a"));
    let header = cookie.seal("token", now()).unwrap();
    let text = header.to_str().unwrap();
    assert!(
        text.ends_with("; Max-Age=43200; Path=/; HttpOnly; SameSite=Lax; Secure"),
        "{text}"
    );
    let pair = sealed(&cookie, "token");
    assert!(pair.starts_with("__Host-alustan="), "{pair}");
    assert!(!pair.contains("token"));
    for pairs in [pair.clone(), format!("a=b; {pair}"), format!("{pair}; c=d")] {
        let opened = cookie.open(&headers(&pairs), now());
        assert_eq!(opened.as_deref(), Some("token"), "{pairs}");
    }
    assert_ne!(pair, sealed(&cookie, "token"), "the nonce is random");
}

#[test]
fn removal_has_the_attributes_of_the_cookie() {
    let cookie = cookie(&folder("a"));
    assert_eq!(
        cookie.removal().unwrap().to_str().unwrap(),
        "__Host-alustan=; Max-Age=0; Path=/; HttpOnly; SameSite=Lax; Secure"
    );
}

#[test]
fn cookie_over_plain_http_has_another_name() {
    let folder = folder("a");
    let secure = cookie(&folder);
    let plain = SessionCookie::new(CookieKeys::load(folder.path().join("keys")).unwrap(), false);
    let pair = sealed(&plain, "token");
    let (name, value) = pair.split_once('=').unwrap();
    assert_eq!(name, "alustan");
    assert!(
        !plain
            .seal("token", now())
            .unwrap()
            .to_str()
            .unwrap()
            .contains("Secure")
    );
    assert!(plain.open(&headers(&pair), now()).is_some());
    let renamed = format!("__Host-alustan={value}");
    assert_eq!(secure.open(&headers(&renamed), now()), None);
}

#[test]
fn tampered_cookie_is_refused() {
    let cookie = cookie(&folder("a"));
    let pair = sealed(&cookie, "token");
    let (name, value) = pair.split_once('=').unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(value).unwrap();
    for index in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[index] ^= 1;
        let pair = format!("{name}={}", URL_SAFE_NO_PAD.encode(&bytes));
        assert_eq!(cookie.open(&headers(&pair), now()), None, "{index}");
        let pair = format!("{name}={}", URL_SAFE_NO_PAD.encode(&bytes[..index]));
        assert_eq!(cookie.open(&headers(&pair), now()), None, "{index}");
    }
    for value in ["", "x", "%", &"A".repeat(5000)] {
        let pair = format!("{name}={value}");
        assert_eq!(cookie.open(&headers(&pair), now()), None, "{value}");
    }
}

#[test]
fn expired_cookie_is_refused() {
    let cookie = cookie(&folder("a"));
    let headers = headers(&sealed(&cookie, "token"));
    let at = |seconds| Timestamp::from_second(now().as_second() + seconds).unwrap();
    assert!(cookie.open(&headers, at(MAX_AGE_SECONDS - 1)).is_some());
    assert_eq!(cookie.open(&headers, at(MAX_AGE_SECONDS)), None);
}

#[test]
fn cookie_of_another_key_is_refused() {
    let pair = sealed(&cookie(&folder("a")), "token");
    assert_eq!(cookie(&folder("b")).open(&headers(&pair), now()), None);
}

#[tokio::test(start_paused = true)]
async fn key_rotation_keeps_cookies_without_a_restart() {
    let folder = folder("a");
    let cookie = cookie(&folder);
    let old = headers(&sealed(&cookie, "token"));
    write(&folder, "ba");
    tokio::time::advance(RELOAD_INTERVAL).await;
    assert!(cookie.open(&old, now()).is_some());
    let new = headers(&sealed(&cookie, "token"));
    write(&folder, "b");
    tokio::time::advance(RELOAD_INTERVAL).await;
    assert_eq!(cookie.open(&old, now()), None);
    assert!(cookie.open(&new, now()).is_some());
    write(&folder, "");
    tokio::time::advance(RELOAD_INTERVAL).await;
    assert!(
        cookie.open(&new, now()).is_some(),
        "an invalid file does not replace the keys"
    );
}

#[test]
fn invalid_key_files_are_refused() {
    let folder = folder("");
    let file = folder.path().join("keys");
    let short = STANDARD.encode([1; 16]);
    let key = STANDARD.encode([1; KEY_BYTES]);
    for (text, message) in [
        (String::new(), "found 0"),
        (format!("{key}\n{key}\n{key}\n"), "found 3"),
        (short, "32 random bytes in base64"),
        ("not base64".to_owned(), "32 random bytes in base64"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = CookieKeys::load(file.clone()).err().unwrap();
        assert!(error.contains(message), "{error}");
    }
    assert!(CookieKeys::load(folder.path().join("missing")).is_err());
}

#[test]
fn token_that_does_not_fit_into_a_cookie_is_refused() {
    let cookie = cookie(&folder("a"));
    let longest = "x".repeat(max_token_bytes());
    let pair = sealed(&cookie, &longest);
    assert_eq!(cookie.open(&headers(&pair), now()), Some(longest.clone()));
    let error = cookie.seal(&format!("{longest}x"), now()).unwrap_err();
    assert!(error.to_string().contains("at most 2814 bytes"), "{error}");
}

#[test]
fn session_id_depends_on_key_kind_and_credentials() {
    let keys = |keys: &str| CookieKeys::load(folder(keys).path().join("keys")).unwrap();
    let first = keys("a");
    let id = first.session_id("proxy", &["ab", "c"]);
    assert_eq!(id, keys("ab").session_id("proxy", &["ab", "c"]));
    assert_eq!(id.len(), 43);
    for other in [
        first.session_id("proxy", &["a", "bc"]),
        first.session_id("token", &["ab", "c"]),
        keys("b").session_id("proxy", &["ab", "c"]),
    ] {
        assert_ne!(id, other);
    }
}
