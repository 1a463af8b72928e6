//! Pushes that somebody tells the installed operator of.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::Scene;

const SYSTEM: &str = "alustan-system";

/// As docs/hooks.md shows it.
const SENDER: &str = r#"set -eu
id=$(openssl rand -hex 16) at=$(date +%s)
key=$(printf %s "${SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
signature=$(printf '%s.%s.%s' "$id" "$at" "$BODY" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
hack/cluster/in curl -sS -d "$BODY" -H "webhook-id: $id" -H "webhook-timestamp: $at" -H "webhook-signature: v1,$signature" \
  "http://$HOST/hooks/generic""#;

/// Somebody who tells the operator of pushes.
pub struct GitServer<'a> {
    scene: &'a Scene,
    host: String,
    secret: String,
}

impl Scene {
    /// Somebody who knows the operator's secret.
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

impl GitServer<'_> {
    /// The secret that both know.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// What the operator answers to `push`.
    pub async fn tells(&self, push: &Value) -> Value {
        self.signs(&self.secret, push).await
    }

    /// The same, signed with another secret.
    pub async fn signs(&self, secret: &str, push: &Value) -> Value {
        let arguments = [
            format!("HOST={}", self.host),
            format!("SECRET={secret}"),
            format!("BODY={push}"),
        ];
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["bash", "-c", SENDER]);
        let answer = self.scene.cluster.run("env", &arguments).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}
