use axum::http::{HeaderValue, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn sign_in(users: &[&str], groups: &[&str]) -> ProxySignIn {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, STANDARD.encode([1; 32])).unwrap();
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    ProxySignIn::new(
        Client::try_from(config.clone()).unwrap(),
        config,
        ProxyHeaders::default(),
        Impersonation::new(names(users), names(groups)).unwrap(),
        CookieKeys::load(file).unwrap(),
    )
}

/// Returns the head of a request on a connection with a client certificate.
fn head(headers: &[(&str, &[u8])]) -> Parts {
    let mut request = Request::get("/").extension(VerifiedClient);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    request.body(()).unwrap().into_parts().0
}

fn error(sign_in: &ProxySignIn, headers: &[(&str, &[u8])]) -> PageError {
    match sign_in.session(&head(headers)) {
        Err(error) => error,
        Ok(session) => panic!("signed in as {}", session.viewer.user()),
    }
}

#[tokio::test]
async fn headers_without_a_client_certificate_are_refused() {
    let sign_in = sign_in(&["jane"], &[]);
    let mut head = head(&[("x-forwarded-user", b"jane")]);
    assert!(sign_in.session(&head).is_ok());
    head.extensions.clear();
    let refused = sign_in.session(&head).err().unwrap();
    assert!(matches!(refused, PageError::Forbidden(_)), "{refused:?}");
    assert!(
        refused
            .to_string()
            .contains("no verified client certificate")
    );
}

#[tokio::test]
async fn only_listed_users_can_write() {
    let sign_in = sign_in(&["jane"], &["admins"]);
    let session = |user: &str| {
        let head = head(&[
            ("x-forwarded-user", user.as_bytes()),
            ("x-forwarded-groups", b" admins, team ,,admins"),
            ("authorization", b"Bearer x"),
        ]);
        sign_in.session(&head).unwrap()
    };
    let jane = session("jane");
    assert_eq!(jane.viewer.user(), "jane");
    assert!(jane.viewer.is_own() && jane.viewer.writer().is_ok());
    assert!(!jane.can_sign_out);
    let john = session("john");
    assert!(!john.viewer.is_own());
    let read_only = john.viewer.writer().err().unwrap();
    assert!(
        read_only.contains("may not impersonate john"),
        "{read_only}"
    );
    assert_ne!(jane.id, john.id);
    assert!(Arc::ptr_eq(&john.viewer, &session("john").viewer));
}

#[tokio::test]
async fn groups_of_a_reviewed_user_include_system_authenticated() {
    let sign_in = sign_in(&[], &["admins"]);
    let headers: [(&str, &[u8]); 2] = [
        ("x-forwarded-user", b"john"),
        ("x-forwarded-groups", b"team,admins"),
    ];
    let identity = sign_in.identity(&head(&headers).headers).unwrap();
    let Access::Reviewed { groups, .. } = sign_in.access(&identity).unwrap() else {
        panic!("john is not listed");
    };
    assert_eq!(groups, ["admins", "team", "system:authenticated"]);
}

#[tokio::test]
async fn names_reserved_by_kubernetes_are_refused() {
    let sign_in = sign_in(&["jane"], &[]);
    let masters: [&[(&str, &[u8])]; 3] = [
        &[("x-forwarded-user", b"system:admin")],
        &[("x-forwarded-user", b" system:serviceaccount:a:b")],
        &[
            ("x-forwarded-user", b"jane"),
            ("x-forwarded-groups", b"team, system:masters"),
        ],
    ];
    for headers in masters {
        let refused = error(&sign_in, headers);
        assert!(matches!(refused, PageError::Forbidden(_)), "{refused:?}");
        assert!(refused.to_string().contains("reserved"), "{refused}");
    }
    for name in ["system:masters", "", "a\nb", "é"] {
        let names = || [name.to_owned()];
        assert!(Impersonation::new(names(), []).is_err(), "{name}");
        assert!(Impersonation::new([], names()).is_err(), "{name}");
    }
}

#[tokio::test]
async fn request_without_user_requires_sign_in() {
    let sign_in = sign_in(&[], &[]);
    let headers: [&[(&str, &[u8])]; 3] = [
        &[],
        &[("x-forwarded-user", b" ")],
        &[("x-forwarded-groups", b"team")],
    ];
    for headers in headers {
        let refused = error(&sign_in, headers);
        assert!(
            matches!(refused, PageError::SignInRequired(_)),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn headers_beyond_the_limits_are_refused() {
    let sign_in = sign_in(&[], &[]);
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    let many: Vec<String> = (0..=MAX_GROUPS).map(|number| number.to_string()).collect();
    let many = many.join(",");
    let user = ("x-forwarded-user", &b"john"[..]);
    let headers: [&[(&str, &[u8])]; 6] = [
        &[user, ("x-forwarded-user", b"jane")],
        &[
            user,
            ("x-forwarded-groups", b"a"),
            ("x-forwarded-groups", b"b"),
        ],
        &[("x-forwarded-user", long.as_bytes())],
        &[user, ("x-forwarded-groups", long.as_bytes())],
        &[user, ("x-forwarded-groups", many.as_bytes())],
        &[("x-forwarded-user", b"\xff")],
    ];
    for headers in headers {
        let refused = error(&sign_in, headers);
        assert!(matches!(refused, PageError::Invalid(_)), "{refused:?}");
    }
    let most = many.split_once(',').unwrap().1;
    let name = "x".repeat(MAX_NAME_BYTES);
    let headers: [(&str, &[u8]); 2] = [
        ("x-forwarded-user", name.as_bytes()),
        ("x-forwarded-groups", most.as_bytes()),
    ];
    assert!(sign_in.session(&head(&headers)).is_ok());
}

#[tokio::test]
async fn only_the_configured_headers_are_read() {
    let mut sign_in = sign_in(&[], &[]);
    sign_in.headers.user = HeaderName::from_static("x-auth-request-user");
    assert!(
        sign_in
            .session(&head(&[("x-auth-request-user", b"john")]))
            .is_ok()
    );
    let refused = error(&sign_in, &[("x-forwarded-user", b"john")]);
    assert!(
        matches!(refused, PageError::SignInRequired(_)),
        "{refused:?}"
    );
}
