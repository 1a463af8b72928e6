//! Mutating webhook that injects sidecars into pods, as service meshes do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::labels::NAME;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::Scene;
use crate::addresses::host;
use crate::tls::{Certificate, TlsListener};

/// Injects a sidecar into each pod of one namespace, regardless of labels and annotations. Pods of the resource `native` get a native
/// sidecar. Pods of other resources get a regular container. Sidecars run until they receive SIGTERM.
pub struct Injector {
    pods: Arc<AtomicUsize>,
}

impl Injector {
    /// Starts the webhook for pods of `scene`. The webhook configuration is deleted with the namespace.
    pub async fn start(scene: &Scene) -> Self {
        let own = Certificate::self_signed(&host().to_string());
        let listener = TlsListener::bind(&host().to_string(), &own).await;
        let url = format!("https://{}/inject", listener.address());
        let pods = Arc::<AtomicUsize>::default();
        let router = Router::new()
            .route("/inject", post(inject))
            .with_state(pods.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        register(scene, &url, &own.certificate).await;
        Self { pods }
    }

    /// Returns the number of pods that got a sidecar.
    pub fn pods(&self) -> usize {
        self.pods.load(Ordering::Relaxed)
    }
}

/// Registers the webhook at `url` for pods of the namespace. The namespace owns the webhook configuration.
async fn register(scene: &Scene, url: &str, ca: &str) {
    let client = scene.cluster.client.clone();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = namespaces.get(&scene.namespace).await.unwrap();
    let webhook = json!({
        "metadata": {
            "name": format!("injector-{}", scene.namespace),
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Namespace", "name": scene.namespace, "uid": namespace.uid(),
            }],
        },
        "webhooks": [{
            "name": "injector.alustan.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": url, "caBundle": STANDARD.encode(ca)}, "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }],
        }],
    });
    let webhook: MutatingWebhookConfiguration = serde_json::from_value(webhook).unwrap();
    let webhooks = Api::all(client);
    let create = PostParams::default();
    webhooks.create(&create, &webhook).await.unwrap();
}

async fn inject(State(pods): State<Arc<AtomicUsize>>, review: Bytes) -> String {
    let review: Value = serde_json::from_slice(&review).unwrap();
    let pod = &review["request"]["object"];
    let own = &pod["spec"]["containers"][0];
    let mut sidecar = json!({
        "name": "proxy", "image": own["image"], "securityContext": own["securityContext"],
        "command": ["bash", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
    });
    let change = if pod["metadata"]["labels"][NAME] == "native" {
        sidecar["restartPolicy"] = json!("Always");
        let mut all = pod["spec"]["initContainers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.insert(0, sidecar);
        json!([{"op": "add", "path": "/spec/initContainers", "value": all}])
    } else {
        json!([{"op": "add", "path": "/spec/containers/-", "value": sidecar}])
    };
    pods.fetch_add(1, Ordering::Relaxed);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch",
            "patch": STANDARD.encode(change.to_string()),
        },
    })
    .to_string()
}
