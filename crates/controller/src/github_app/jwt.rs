//! JSON Web Tokens with which a GitHub App authenticates
//! (<https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app>).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

/// Time before now at which a JWT becomes valid. Permits a clock of the operator that is fast. GitHub recommends one minute.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);
/// Time after now at which a JWT expires. GitHub permits at most ten minutes.
const LIFETIME: SignedDuration = SignedDuration::from_mins(5);

/// Returns a JWT of the App `app_id`, signed with the RSA key `pem`.
///
/// # Errors
/// The cause, as a verb phrase about the key. Contains no part of the key.
pub(super) fn jwt(app_id: &str, pem: &[u8], now: Timestamp) -> Result<String, &'static str> {
    let claims = json!({
        "iat": (now - CLOCK_SKEW).as_second(),
        "exp": (now + LIFETIME).as_second(),
        "iss": app_id,
    });
    let encode = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let header = json!({"alg": "RS256", "typ": "JWT"});
    let text = format!("{}.{}", encode(&header), encode(&claims));
    let key = rsa_key(pem)?;
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        text.as_bytes(),
        &mut signature,
    )
    .map_err(|_| "cannot sign: the system has no random numbers")?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn rsa_key(pem: &[u8]) -> Result<RsaKeyPair, &'static str> {
    const NO_KEY: &str = "is not a private key in PEM format without a passphrase";
    const NOT_RSA: &str = "is not an RSA key of 2048 to 8192 bits";
    match PrivateKeyDer::from_pem_slice(pem).map_err(|_| NO_KEY)? {
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        _ => return Err(NOT_RSA),
    }
    .map_err(|_| NOT_RSA)
}
