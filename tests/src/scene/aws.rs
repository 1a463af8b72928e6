//! Emulator of AWS (S3 and DynamoDB) in the dev cluster.

use serde_json::{Value, json};

use crate::{Scene, node};

const S3: &str = "s3.us-east-1.amazonaws.com";
const DYNAMO: &str = "dynamodb.us-east-1.amazonaws.com";

impl Scene {
    /// Creates a bucket and a lock table in the emulator, and the Secret `aws` with credentials for them.
    pub async fn aws_with_secret(&self, bucket: &str, table: &str) {
        self.aws(bucket, table).await;
        let credentials = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "the stand-in takes every secret"),
        ];
        self.secret("aws", "Opaque", &credentials).await;
    }

    /// Creates a bucket and a lock table in the emulator.
    pub async fn aws(&self, bucket: &str, table: &str) {
        self.cluster.run("hack/cluster/aws-up", &[]).await;
        let url = format!("https://{S3}/{bucket}");
        // Bucket and table may exist because of another test.
        self.call(S3, &["-X", "PUT", &url]).await;
        let table = json!({
            "TableName": table, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "LockID", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "LockID", "KeyType": "HASH"}],
        });
        self.dynamo("CreateTable", &table).await;
    }

    /// Locks the state at `place` (bucket and key) for `holder`, as the engine does.
    pub async fn lock(&self, table: &str, place: &str, holder: &str) {
        let info = json!({
            "ID": "0c1d6e8f-5a31-4a5b-9a5e-3c9d2b1f7a60", "Operation": "OperationTypeApply",
            "Info": "", "Who": holder, "Version": "1.11.4", "Path": place,
            "Created": "2026-11-20T08:15:00.5Z",
        });
        let item = json!({"LockID": {"S": place}, "Info": {"S": info.to_string()}});
        self.dynamo("PutItem", &json!({"TableName": table, "Item": item}))
            .await;
    }

    /// Releases the lock of the state at `place`, regardless of its holder.
    pub async fn unlock(&self, table: &str, place: &str) {
        let key = json!({"TableName": table, "Key": {"LockID": {"S": place}}});
        self.dynamo("DeleteItem", &key).await;
    }

    /// Returns the lock of the state at `place`, if it is held.
    pub async fn lock_at(&self, table: &str, place: &str) -> Option<Value> {
        let key = json!({"TableName": table, "Key": {"LockID": {"S": place}}});
        let item = self.dynamo("GetItem", &key).await;
        serde_json::from_str(item["Item"]["Info"]["S"].as_str()?).ok()
    }

    async fn dynamo(&self, operation: &str, body: &Value) -> Value {
        let url = format!("https://{DYNAMO}/");
        let target = format!("X-Amz-Target: DynamoDB_20120810.{operation}");
        let (kind, body) = ("Content-Type: application/x-amz-json-1.0", body.to_string());
        let answer = self
            .call(DYNAMO, &["-H", &target, "-H", kind, "-d", &body, &url])
            .await;
        serde_json::from_str(&answer).expect("JSON")
    }

    /// Puts an object into a bucket.
    pub async fn put_s3(&self, bucket: &str, key: &str, text: &str) {
        let url = format!("https://{S3}/{bucket}/{key}");
        let kind = "Content-Type: application/json";
        self.call(S3, &["-X", "PUT", "-H", kind, "--data-binary", text, &url])
            .await;
    }

    /// Returns the text of an object in a bucket.
    pub async fn s3(&self, bucket: &str, key: &str) -> String {
        let url = format!("https://{S3}/{bucket}/{key}");
        self.call(S3, &[&url]).await
    }

    async fn call(&self, host: &str, arguments: &[&str]) -> String {
        let connect = format!("{host}:443:{}", node(443));
        let authority = self.cluster.folder.join("ca.crt");
        let authority = authority.to_str().expect("a path");
        let service = host.split('.').next().unwrap_or_default();
        let sign = format!("aws:amz:us-east-1:{service}");
        let login = ["--aws-sigv4", &sign, "--user", "test:test"];
        let mut all = vec!["-sS", "--connect-to", &connect, "--cacert", authority];
        all.extend(login);
        all.extend(arguments);
        self.cluster.run("curl", &all).await
    }
}
