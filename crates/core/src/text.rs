//! Serde by text: types that are written as their `Display` and read by their `FromStr`.

/// Serialises types as their `Display` text.
macro_rules! serialize_as_text {
    ($($type:ty),+ $(,)?) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

/// Implements `as_str`, `Display` (with padding) and `Serialize` for newtypes of text.
macro_rules! show_text {
    ($($type:ty),+ $(,)?) => {$(
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        serialize_as_text!($type);
    )+};
}

/// Deserialises types from text by `FromStr`.
macro_rules! deserialize_from_text {
    ($($type:ty),+ $(,)?) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
