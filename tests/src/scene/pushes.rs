//! Webhook requests that report pushes to the installed operator.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use ring::hmac::{HMAC_SHA256, Key, sign};
use serde_json::{Value, json};

use crate::{Cluster, Scene};

const SYSTEM: &str = "alustan-system";
/// Webhook of the installed operator, through the API server.
const HOOK: &str =
    "/api/v1/namespaces/alustan-system/services/alustan-controller:http/proxy/hooks/generic";

/// Shell script of docs/hooks.md. Sends a signed webhook request that reports a push.
const SENDER: &str = r#"set -eu
id=$(openssl rand -hex 16) at=$(date +%s)
key=$(printf %s "${SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
signature=$(printf '%s.%s.%s' "$id" "$at" "$BODY" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
hack/cluster/in curl -sS -d "$BODY" -H "webhook-id: $id" -H "webhook-timestamp: $at" -H "webhook-signature: v1,$signature" \
  "http://$HOST/hooks/generic""#;

/// Git server that reports pushes to the operator.
pub struct GitServer<'a> {
    scene: &'a Scene,
    host: String,
    secret: String,
}

impl Scene {
    /// Returns a git server with the operator's webhook secret.
    pub async fn git_server(&self) -> GitServer<'_> {
        let path = "jsonpath={.data.dev}";
        let get = ["get", "secret", "alustan-hooks", "-n", SYSTEM, "-o", path];
        let encoded = self.kubectl(&get).await;
        let ByteString(secret) = serde_json::from_value(json!(encoded.trim())).expect("base64");
        let path = "jsonpath={.spec.clusterIP}";
        let service = [
            "get",
            "service",
            "alustan-controller",
            "-n",
            SYSTEM,
            "-o",
            path,
        ];
        GitServer {
            scene: self,
            host: self.kubectl(&service).await,
            secret: String::from_utf8(secret).expect("text"),
        }
    }
}

impl Scene {
    /// Reports a change of `repository` (owner and name) to the installed operator, if the test uses that operator. Does not repeat a
    /// failed delivery, like a git server: the operator also polls the repository.
    pub(super) async fn report_push(&self, repository: &str) {
        if self.uses_installed_operator {
            self.cluster.report_push(repository).await;
        }
    }
}

impl Cluster {
    /// Reports a change of `repository` (owner and name) to the installed operator. Ignores errors, see [`Scene::report_push`].
    pub(crate) async fn report_push(&self, repository: &str) {
        let url = format!("https://git.alustan.test/{repository}");
        let push = json!({ "repository": url }).to_string();
        let _undelivered = self.deliver(&push).await;
    }

    async fn deliver(&self, body: &str) -> Result<String, kube::Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), SYSTEM);
        let data = secrets.get("alustan-hooks").await?.data;
        let secret = data.and_then(|mut data| data.remove("dev"));
        let ByteString(secret) = secret.expect("entry dev of Secret alustan-hooks");
        let secret = secret
            .strip_prefix(b"whsec_")
            .expect("a Standard Webhooks secret");
        let key = Key::new(HMAC_SHA256, &STANDARD.decode(secret).expect("base64"));
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock");
        let (id, at) = (now.as_nanos(), now.as_secs());
        let signature = sign(&key, format!("{id}.{at}.{body}").as_bytes());
        let request = Request::post(HOOK)
            .header("webhook-id", id.to_string())
            .header("webhook-timestamp", at)
            .header(
                "webhook-signature",
                format!("v1,{}", STANDARD.encode(signature)),
            )
            .body(body.as_bytes().to_vec());
        self.client.request_text(request.expect("a request")).await
    }
}

impl GitServer<'_> {
    /// Returns the shared webhook secret.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Reports `push`. Returns the operator's response.
    pub async fn report(&self, push: &Value) -> Value {
        let arguments = [
            format!("HOST={}", self.host),
            format!("SECRET={}", self.secret),
            format!("BODY={push}"),
        ];
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["bash", "-c", SENDER]);
        let answer = self.scene.cluster.run("env", &arguments).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}
