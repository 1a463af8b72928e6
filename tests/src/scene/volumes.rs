//! Finds and deletes volumes of the test, and creates volumes with a limited size.

use std::io::Write;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Scene;

impl Scene {
    /// Returns the folder on the node with the volume of the `PersistentVolumeClaim` `claim`.
    pub async fn volume_of(&self, claim: &str) -> PathBuf {
        let volume = self.bound(claim).await;
        let folder = format!("{volume}_{}_{claim}", self.namespace);
        self.cluster.folder.join("volumes").join(folder)
    }

    /// Returns the volume of the `PersistentVolumeClaim` `claim`. Annotates the `PersistentVolumeClaim` with a node first, because a
    /// `PersistentVolumeClaim` that no pod has used is not bound.
    async fn bound(&self, claim: &str) -> String {
        const NODE: &str = "volume.kubernetes.io/selected-node";
        let nodes = Api::<Node>::all(self.cluster.client.clone())
            .list_metadata(&ListParams::default())
            .await;
        let node = nodes.expect("nodes").items.remove(0).name_any();
        let claims = self.api::<PersistentVolumeClaim>();
        let schedule = Patch::Merge(json!({"metadata": {"annotations": {NODE: node}}}));
        claims
            .patch(claim, &PatchParams::default(), &schedule)
            .await
            .expect("a claim");
        self.until("the claim to be bound", async || {
            let bound = claims.get(claim).await.ok()?;
            let is_bound = bound.status?.phase? == "Bound";
            bound.spec?.volume_name.filter(|_| is_bound)
        })
        .await
    }

    /// Deletes the volume of the `PersistentVolumeClaim` `claim`, as if the disk were lost.
    pub async fn lose_volume(&self, claim: &str) {
        let claims = self.api::<PersistentVolumeClaim>();
        let volume = self.bound(claim).await;
        let volumes: Api<PersistentVolume> = Api::all(self.cluster.client.clone());
        let pv = volumes.get(&volume).await.expect("a volume");
        volumes
            .delete(&pv.name_any(), &DeleteParams::background())
            .await
            .expect("delete the volume");
        // A finalizer protects the volume while a `PersistentVolumeClaim` is bound to it.
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

/// Disk of the node with a volume for the namespace of the test.
pub struct Disk {
    /// Name of the storage class of the volume.
    pub class: String,
    /// Folder on the node at which the disk is mounted.
    pub folder: PathBuf,
    is_slow: bool,
}

impl Scene {
    /// Creates a disk of `kib` KiB. A `PersistentVolumeClaim` with the storage class of the disk is bound to it.
    pub async fn disk(&self, kib: u32) -> Disk {
        let disk = self.new_disk(false);
        std::fs::create_dir(&disk.folder).expect("a folder");
        let options = format!("size={kib}k,mode=777");
        let mount = ["-t", "tmpfs", "-o", &options, "tmpfs", disk.path()];
        self.cluster.run("mount", &mount).await;
        self.create_volume(&disk, &format!("{kib}Ki")).await;
        disk
    }

    /// Creates a disk like [`Self::disk`], which writes 1 MiB per second. The node has one such disk at a time.
    pub async fn slow_disk(&self) -> Disk {
        let disk = self.new_disk(true);
        self.cluster.run(SLOW_DISK, &["up", disk.path()]).await;
        self.create_volume(&disk, "64Mi").await;
        disk
    }

    fn new_disk(&self, is_slow: bool) -> Disk {
        let class = self.namespace.clone();
        let folder = self.cluster.folder.join("volumes").join(&class);
        Disk {
            class,
            folder,
            is_slow,
        }
    }

    async fn create_volume(&self, disk: &Disk, size: &str) {
        let class = &disk.class;
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": class},
            "spec": {
                "storageClassName": class, "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"], "hostPath": {"path": disk.path()},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        });
        let volumes: Api<PersistentVolume> = Api::all(self.cluster.client.clone());
        let volume = serde_json::from_value(volume).expect("a volume");
        volumes
            .create(&PostParams::default(), &volume)
            .await
            .expect("create the volume");
    }

    /// Removes a disk. Its volume may be deleted already.
    pub async fn remove_disk(&self, disk: Disk) {
        let volumes: Api<PersistentVolume> = Api::all(self.cluster.client.clone());
        // Ignores an error: the test may have deleted the volume.
        let _ = volumes.delete(&disk.class, &DeleteParams::default()).await;
        if disk.is_slow {
            self.cluster.run(SLOW_DISK, &["down", disk.path()]).await;
        } else {
            // A terminated pod may still use the mount.
            self.cluster.run("umount", &["--lazy", disk.path()]).await;
        }
        std::fs::remove_dir(&disk.folder).expect("remove the folder");
    }
}

const SLOW_DISK: &str = "hack/cluster/slow-disk";
/// File that fills a disk.
const FILLER: &str = "full";

impl Disk {
    fn path(&self) -> &str {
        self.folder.to_str().expect("a path")
    }

    /// Fills the disk.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.folder.join(FILLER)).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// Frees the space that [`Self::fill`] took.
    pub fn free(&self) {
        std::fs::remove_file(self.folder.join(FILLER)).expect("remove the file");
    }

    /// Returns whether the disk is full.
    pub fn is_full(&self) -> bool {
        std::fs::write(self.folder.join("more"), [0; 8192]).is_err()
    }
}
