//! The dev cluster's stand-in for AWS.

use crate::Scene;

/// Where it answers in plain http.
pub const AWS: &str = "10.99.1.2:5566";
/// Where it answers.
const ADDRESS: &str = "10.99.1.2";
const S3: &str = "s3.us-east-1.amazonaws.com";
const DYNAMO: &str = "dynamodb.us-east-1.amazonaws.com";

impl Scene {
    /// A bucket and a table with locks, in the stand-in for AWS.
    pub async fn aws(&self, bucket: &str, table: &str) {
        self.cluster.run("hack/cluster/aws-up", &[]).await;
        let url = format!("https://{S3}/{bucket}");
        // Both may be there from another test.
        self.call(S3, &["-X", "PUT", &url]).await;
        let url = format!("https://{DYNAMO}/");
        let body = format!(
            "{{\"TableName\":\"{table}\",\"BillingMode\":\"PAY_PER_REQUEST\",\
             \"AttributeDefinitions\":[{{\"AttributeName\":\"LockID\",\"AttributeType\":\"S\"}}],\
             \"KeySchema\":[{{\"AttributeName\":\"LockID\",\"KeyType\":\"HASH\"}}]}}"
        );
        let target = "X-Amz-Target: DynamoDB_20120810.CreateTable";
        let kind = "Content-Type: application/x-amz-json-1.0";
        self.call(DYNAMO, &["-H", target, "-H", kind, "-d", &body, &url])
            .await;
    }

    /// The text of an object in a bucket.
    pub async fn s3(&self, bucket: &str, key: &str) -> String {
        let url = format!("https://{S3}/{bucket}/{key}");
        self.call(S3, &[&url]).await
    }

    async fn call(&self, host: &str, arguments: &[&str]) -> String {
        let resolve = format!("{host}:443:{ADDRESS}");
        let authority = self.cluster.folder.join("ca.crt");
        let authority = authority.to_str().expect("a path");
        let service = host.split('.').next().unwrap_or_default();
        let sign = format!("aws:amz:us-east-1:{service}");
        let login = ["--aws-sigv4", &sign, "--user", "test:test"];
        let mut all = vec!["-sS", "--resolve", &resolve, "--cacert", authority];
        all.extend(login);
        all.extend(arguments);
        self.cluster.run("curl", &all).await
    }
}
