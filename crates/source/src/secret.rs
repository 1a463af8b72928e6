//! Secret values.

/// Secret bytes. Has no `Debug`, `Display` or `Serialize`, so that it cannot be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Wraps bytes from a Secret.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes, for the code that uses the secret.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Secret text. Has no `Debug`, `Display` or `Serialize`, so that it cannot be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    /// Wraps text from a Secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, for the code that uses the secret.
    pub fn expose(&self) -> &str {
        &self.0
    }
}
