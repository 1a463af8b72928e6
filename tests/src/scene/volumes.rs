//! The scene's volumes, and what becomes of them.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::Scene;

impl Scene {
    /// Takes the volume of a claim away for good, as a lost disk would.
    pub async fn lose_volume(&self, claim: &str) {
        let claims = self.api::<PersistentVolumeClaim>();
        let bound = claims.get(claim).await.expect("a claim");
        let volume = bound.spec.and_then(|spec| spec.volume_name);
        let volume = volume.expect("a volume");
        let volumes: Api<PersistentVolume> = Api::all(self.cluster.client.clone());
        let found = volumes.get(&volume).await.expect("a volume");
        volumes
            .delete(&found.name_any(), &DeleteParams::background())
            .await
            .expect("delete the volume");
        // It is kept as long as a claim is bound to it.
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        volumes
            .patch(&volume, &PatchParams::default(), &free)
            .await
            .expect("let the volume go");
        self.until("the claim to know it", async || {
            let phase = claims.get(claim).await.ok()?.status?.phase?;
            (phase == "Lost").then_some(())
        })
        .await;
    }
}
