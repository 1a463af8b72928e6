use std::convert::Infallible;

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::sign_in::cookie::CookieKeys;

/// API server that accepts some tokens.
#[derive(Clone, Default)]
struct Api {
    /// Name of the user, by token.
    users: Arc<Mutex<Vec<(&'static str, &'static str)>>>,
    /// Specs of the TokenReviews.
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl Api {
    fn sign_in(&self) -> TokenSignIn {
        let api = self.clone();
        let client = Client::new(
            service_fn(move |request: Request<kube::client::Body>| {
                let api = api.clone();
                async move { Ok::<_, Infallible>(api.answer(request).await) }
            }),
            "default",
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, STANDARD.encode([1; 32])).unwrap();
        let cookie = SessionCookie::new(CookieKeys::load(file).unwrap(), true);
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        TokenSignIn::new(client, config, cookie)
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> axum::http::Response<Body> {
        let path = request.uri().path().to_owned();
        assert_eq!(path, "/apis/authentication.k8s.io/v1/tokenreviews");
        let body = request.into_body().collect_bytes().await.unwrap();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let spec = review["spec"].clone();
        self.reviews.lock().push(spec.clone());
        let token = spec["token"].as_str().unwrap();
        let user = self
            .users
            .lock()
            .iter()
            .find(|(known, _)| *known == token)
            .map(|(_, user)| *user);
        let status = match user {
            Some(user) => json!({"authenticated": true, "user": {"username": user}}),
            None => json!({"authenticated": false, "error": "invalid token"}),
        };
        let kind = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "metadata": {}, "spec": spec, "status": status,
        });
        axum::http::Response::builder()
            .status(201)
            .body(Body::from(kind.to_string()))
            .unwrap()
    }

    fn count(&self) -> usize {
        self.reviews.lock().len()
    }
}

fn head(name: &str, value: &str) -> Parts {
    let request = Request::get("/").header(name, value).body(()).unwrap();
    request.into_parts().0
}

/// Returns the header `Cookie` for the header `Set-Cookie` of `response`.
fn cookie_of(response: &Response) -> String {
    let header = response.headers()[header::SET_COOKIE].to_str().unwrap();
    header.split(';').next().unwrap().to_owned()
}

fn required(result: Result<Session, PageError>) -> String {
    match result {
        Err(PageError::SignInRequired(message)) => message,
        Err(error) => panic!("{error:?}"),
        Ok(session) => panic!("signed in as {}", session.viewer.user()),
    }
}

#[tokio::test]
async fn header_and_cookie_sign_in_the_same_user() {
    let api = Api::default();
    api.users.lock().push(("t1", "jane"));
    let sign_in = api.sign_in();
    let by_header = sign_in.session(&head("authorization", "Bearer t1")).await;
    let by_header = by_header.unwrap();
    assert_eq!(by_header.viewer.user(), "jane");
    assert!(by_header.viewer.is_own() && !by_header.can_sign_out);
    let response = sign_in.submit(b"a=b&token=+t1%0A").await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert_eq!(response.headers()[header::LOCATION], "/");
    let head = head("cookie", &cookie_of(&response));
    let by_cookie = sign_in.session(&head).await.unwrap();
    assert!(by_cookie.can_sign_out);
    assert!(Arc::ptr_eq(&by_cookie.viewer, &by_header.viewer));
    assert_eq!(by_cookie.id, by_header.id);
    assert!(!by_cookie.id.contains("t1"));
    assert_eq!(*api.reviews.lock(), [json!({"token": "t1"})]);
    let response = sign_in.sign_out_of(&head).unwrap();
    assert!(cookie_of(&response).ends_with('='));
    sign_in.session(&head).await.unwrap();
    assert_eq!(api.count(), 2, "sign-out removes the cached review");
}

#[tokio::test]
async fn request_without_credentials_requires_sign_in() {
    let api = Api::default();
    let sign_in = api.sign_in();
    for (name, value) in [
        ("accept", "*/*"),
        ("authorization", "Basic dDE6"),
        ("cookie", "__Host-alustan=x"),
        ("cookie", "alustan=t1"),
    ] {
        let message = required(sign_in.session(&head(name, value)).await);
        assert_eq!(message, "sign in with a token");
    }
    assert_eq!(api.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn refused_token_is_reviewed_once_in_5_seconds() {
    let api = Api::default();
    let sign_in = api.sign_in();
    for _ in 0..2 {
        let message = required(sign_in.session(&head("authorization", "bearer t1")).await);
        assert!(message.contains("does not accept the token"), "{message}");
    }
    assert_eq!(api.count(), 1);
    tokio::time::advance(REFUSAL_MAX_AGE).await;
    required(sign_in.session(&head("authorization", "bearer t1")).await);
    assert_eq!(api.count(), 2);
    assert!(matches!(
        sign_in.submit(b"token=t1").await,
        Err(PageError::SignInRequired(_))
    ));
    let long = format!("Bearer {}", "x".repeat(MAX_TOKEN_BYTES + 1));
    for malformed in ["Bearer a b", &long] {
        required(sign_in.session(&head("authorization", malformed)).await);
    }
    assert_eq!(api.count(), 2, "malformed tokens are not reviewed");
    for form in [
        &b""[..],
        b"token=",
        b"tok=t1",
        &vec![b'x'; MAX_FORM_BYTES + 1],
    ] {
        let refused = sign_in.submit(form).await;
        assert!(matches!(refused, Err(PageError::Invalid(_))));
    }
    let mut twice = head("authorization", "Bearer t1");
    let value = HeaderValue::from_static("Bearer t2");
    twice.headers.append(header::AUTHORIZATION, value);
    let refused = sign_in.session(&twice).await;
    assert!(matches!(refused, Err(PageError::Invalid(_))));
}

#[tokio::test(start_paused = true)]
async fn review_is_repeated_and_the_session_ends_with_the_token() {
    let api = Api::default();
    api.users.lock().push(("t1", "jane"));
    let sign_in = api.sign_in();
    let head = head("authorization", "Bearer t1");
    let first = sign_in.session(&head).await.unwrap();
    tokio::time::advance(REVIEW_MAX_AGE.saturating_sub(Duration::from_secs(1))).await;
    sign_in.session(&head).await.unwrap();
    assert_eq!(api.count(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    let second = sign_in.session(&head).await.unwrap();
    assert_eq!(api.count(), 2);
    assert!(Arc::ptr_eq(&first.viewer, &second.viewer));
    api.users.lock().clear();
    tokio::time::advance(REVIEW_MAX_AGE).await;
    required(sign_in.session(&head).await);
    assert_eq!(api.count(), 3);
}

#[tokio::test]
async fn client_of_a_user_has_no_credentials_of_the_page() {
    let api = Api::default();
    let mut sign_in = api.sign_in();
    sign_in.config.auth_info = AuthInfo {
        token_file: Some("/nonexistent".to_owned()),
        impersonate: Some("page".to_owned()),
        ..AuthInfo::default()
    };
    let credentials = sign_in.config_of("t1").auth_info;
    let expected = AuthInfo {
        token: Some("t1".to_owned().into()),
        ..AuthInfo::default()
    };
    let text = |credentials: &AuthInfo| serde_json::to_string(credentials).unwrap();
    assert_eq!(text(&credentials), text(&expected));
}
