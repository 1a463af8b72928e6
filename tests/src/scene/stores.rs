//! Storage for states in other backends than AWS: Google Cloud Storage and `PostgreSQL`.

use serde_json::json;

use crate::{Scene, node};

/// Port of the emulator of Google Cloud Storage in the dev cluster.
const GCS: u16 = 5567;
/// Port of `PostgreSQL` in the dev cluster.
const PG: u16 = 5432;

impl Scene {
    /// Creates a bucket in the emulator of Google Cloud Storage.
    pub async fn gcs(&self, bucket: &str) {
        self.cluster.run("hack/cluster/gcs-up", &[]).await;
        let url = format!("http://{}/storage/v1/b?project=e2e", node(GCS));
        let body = json!({"name": bucket}).to_string();
        let kind = "Content-Type: application/json";
        let arguments = ["-sSf", "-H", kind, "-d", &body, &url];
        self.cluster.run("curl", &arguments).await;
    }

    /// Returns an object in a bucket of the emulator of Google Cloud Storage.
    pub async fn in_gcs(&self, bucket: &str, object: &str) -> String {
        let object = object.replace('/', "%2F");
        let url = format!(
            "http://{}/storage/v1/b/{bucket}/o/{object}?alt=media",
            node(GCS)
        );
        self.cluster.run("curl", &["-sSf", &url]).await
    }

    /// Starts `PostgreSQL`. Returns the URL of a database, with user and password.
    pub async fn pg(&self) -> String {
        self.cluster.run("hack/cluster/pg-up", &[]).await;
        format!(
            "postgres://postgres:alustan-test@{}/postgres?sslmode=disable",
            node(PG)
        )
    }

    /// Runs `query` in the database of [`Self::pg`]. Returns its result.
    pub async fn in_pg(&self, query: &str) -> String {
        let url = self.pg().await;
        self.cluster.run("psql", &["-qAt", "-c", query, &url]).await
    }

    /// Returns the property `subresource` of a bucket in the emulator of AWS: `versioning`, `encryption`, …
    pub async fn about_bucket(&self, bucket: &str, subresource: &str) -> String {
        self.s3(bucket, &format!("?{subresource}")).await
    }
}
