//! Checks of each request before the sign-in, and headers of each response.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::hmac;

use crate::error::PageError;

/// Headers of each response. The policy permits no inline scripts and styles, no frames and no other hosts.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    ),
    // Proxies based on nginx buffer streams without this header.
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

/// Number of requests of one session in [`WINDOW`].
const MAX_REQUESTS: u32 = 600;

/// Time in which requests are counted.
const WINDOW: Duration = Duration::from_secs(30);

/// Maximum number of open streams of one user.
const MAX_STREAMS: u32 = 20;

/// Maximum number of sessions whose requests are counted.
const MAX_SESSIONS: usize = 10_000;

/// Values of header `Host` that the page accepts. Prevents DNS rebinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Accepts `hosts`, each with its port unless that is the default port of the scheme.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self(hosts.into_iter().collect())
    }

    /// Fails if header `Host` has another value.
    ///
    /// # Errors
    /// [`PageError::Invalid`].
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), PageError> {
        let host = text(headers, &HOST).unwrap_or_default();
        if self.0.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        Err(PageError::Invalid(format!(
            "host {host:?} is not allowed; open the page at {}",
            self.0.join(" or ")
        )))
    }
}

/// Adds the security headers to a response.
pub(crate) fn add_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
}

/// Fails if another site caused a request that changes objects: `Sec-Fetch-Site` and `Origin` are set by the browser.
///
/// # Errors
/// [`PageError::Forbidden`].
pub(crate) fn check_origin(head: &Parts) -> Result<(), PageError> {
    let refused = |what: &str| {
        Err(PageError::Forbidden(format!(
            "the request was sent by another site ({what}): open the page and use its buttons"
        )))
    };
    let site = text(&head.headers, &HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return refused("header Sec-Fetch-Site");
    }
    let Some(origin) = text(&head.headers, &ORIGIN) else {
        return Ok(());
    };
    let host = text(&head.headers, &HOST).unwrap_or_default();
    let origin = origin.split_once("://").map_or("", |(_, host)| host);
    if origin.eq_ignore_ascii_case(host) {
        Ok(())
    } else {
        refused("header Origin")
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Text that the HMAC of a CSRF token covers.
const CSRF: &[u8] = b"alustan csrf";

/// Returns the CSRF token of the session `id`. The id is unpredictable, and the same on all replicas.
pub(crate) fn csrf_token(id: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&csrf_key(id), CSRF))
}

/// Fails if `token` is not that of the session `id`.
///
/// # Errors
/// [`PageError::Forbidden`].
pub(crate) fn check_csrf_token(id: &str, token: &str) -> Result<(), PageError> {
    let tag = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
    hmac::verify(&csrf_key(id), CSRF, &tag).map_err(|_| {
        PageError::Forbidden(
            "the form belongs to another session: reload the page and try again".to_owned(),
        )
    })
}

fn csrf_key(id: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, id.as_bytes())
}

/// Limits of the requests and streams of each session.
#[derive(Default)]
pub(crate) struct Limits {
    requests: Mutex<HashMap<String, (Instant, u32)>>,
    streams: Arc<Mutex<HashMap<String, u32>>>,
}

/// An open stream. Frees its slot when it is dropped.
pub(crate) struct StreamSlot {
    streams: Arc<Mutex<HashMap<String, u32>>>,
    user: String,
}

impl Limits {
    /// Counts a request of the session `id`.
    ///
    /// # Errors
    /// [`PageError::TooMany`] above [`MAX_REQUESTS`] in [`WINDOW`].
    pub(crate) fn count(&self, id: &str) -> Result<(), PageError> {
        let now = Instant::now();
        let mut requests = self.requests.lock();
        if requests.len() >= MAX_SESSIONS {
            requests.retain(|_, (start, _)| now.duration_since(*start) < WINDOW);
        }
        if requests.len() >= MAX_SESSIONS {
            requests.clear();
        }
        let (start, count) = requests.entry(id.to_owned()).or_insert((now, 0));
        if now.duration_since(*start) >= WINDOW {
            (*start, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        if *count <= MAX_REQUESTS {
            return Ok(());
        }
        Err(PageError::TooMany(format!(
            "more than {MAX_REQUESTS} requests in {} s: wait, then reload the page",
            WINDOW.as_secs()
        )))
    }

    /// Reserves a stream of `user`.
    ///
    /// # Errors
    /// [`PageError::TooMany`] if the user has [`MAX_STREAMS`] open.
    pub(crate) fn open_stream(&self, user: &str) -> Result<StreamSlot, PageError> {
        let mut streams = self.streams.lock();
        let count = streams.entry(user.to_owned()).or_default();
        if *count >= MAX_STREAMS {
            return Err(PageError::TooMany(format!(
                "{user} has {MAX_STREAMS} open streams: close other windows of the page"
            )));
        }
        *count += 1;
        drop(streams);
        Ok(StreamSlot {
            streams: self.streams.clone(),
            user: user.to_owned(),
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        if let Some(count) = streams.get_mut(&self.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                streams.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use rstest::rstest;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[rstest]
    #[case::no_browser(&[("host", "a.test")], true)]
    #[case::same_origin(&[("host", "a.test"), ("origin", "https://a.test"), ("sec-fetch-site", "same-origin")], true)]
    #[case::other_origin(&[("host", "a.test"), ("origin", "https://b.test")], false)]
    #[case::opaque_origin(&[("host", "a.test"), ("origin", "null")], false)]
    #[case::other_site(&[("host", "a.test"), ("sec-fetch-site", "cross-site")], false)]
    #[case::other_subdomain(&[("host", "a.test"), ("sec-fetch-site", "same-site")], false)]
    fn write_of_another_site_is_refused(#[case] headers: &[(&str, &str)], #[case] allowed: bool) {
        assert_eq!(check_origin(&head(headers)).is_ok(), allowed);
    }

    #[rstest]
    #[case::own(&[("host", "127.0.0.1:8080")], true)]
    #[case::rebound(&[("host", "evil.test:8080")], false)]
    #[case::missing(&[], false)]
    fn other_host_is_refused(#[case] headers: &[(&str, &str)], #[case] allowed: bool) {
        let hosts = Hosts::new(["127.0.0.1:8080".to_owned()]);
        assert_eq!(hosts.check(&head(headers).headers).is_ok(), allowed);
    }

    #[test]
    fn form_of_another_session_is_refused() {
        let token = csrf_token("a");
        assert!(check_csrf_token("a", &token).is_ok());
        for (id, token) in [("b", token.as_str()), ("a", ""), ("a", "!")] {
            assert!(check_csrf_token(id, token).is_err(), "{id} {token}");
        }
    }

    #[test]
    fn streams_of_one_user_are_limited_and_freed() {
        let limits = Limits::default();
        let mut open: Vec<_> = (0..MAX_STREAMS)
            .map(|_| limits.open_stream("ann").unwrap())
            .collect();
        assert!(limits.open_stream("ann").is_err());
        assert!(limits.open_stream("bob").is_ok());
        open.pop();
        assert!(limits.open_stream("ann").is_ok());
    }

    #[test]
    fn requests_of_one_session_are_limited() {
        let limits = Limits::default();
        for _ in 0..MAX_REQUESTS {
            limits.count("a").unwrap();
        }
        assert!(limits.count("a").is_err());
        assert!(limits.count("b").is_ok());
    }
}
