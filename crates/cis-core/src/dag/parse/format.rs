//! The three formats, and how to tell them apart.

use std::path::Path;

/// How a definition is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Toml,
    Json,
    Yaml,
}

impl Format {
    /// By the file's extension: `.toml`, `.json`, `.yaml`, `.yml`.
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// By what stands in it, for standard input and unknown extensions.
    pub fn guess(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&text[..text.len().min(64 * 1024)]);
        let text = text.trim_start_matches('\u{feff}');
        let mut lines = text.lines().map(str::trim);
        let Some(line) = lines.find(|line| !line.is_empty() && !line.starts_with('#')) else {
            return Self::Yaml;
        };
        match line.as_bytes() {
            [b'{', ..] | [b'[', b'{' | b'"' | b']', ..] | b"[" => Self::Json,
            [b'[', ..] => Self::Toml,
            _ if is_toml_pair(line) => Self::Toml,
            _ => Self::Yaml,
        }
    }

    /// The format's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Toml => "TOML",
            Self::Json => "JSON",
            Self::Yaml => "YAML",
        }
    }
}

/// Does `line` look like `key = …`, with no `:` before the `=`?
fn is_toml_pair(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, _)| {
        let key = key.trim();
        !key.is_empty()
            && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\''))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_tell() {
        let of = |path: &str| Format::of_path(Path::new(path));
        assert_eq!(of("a/b.toml"), Some(Format::Toml));
        assert_eq!(of("b.JSON"), Some(Format::Json));
        assert_eq!(of("b.yml"), Some(Format::Yaml));
        assert_eq!(of("b.yaml"), Some(Format::Yaml));
        assert_eq!(of("Makefile"), None);
    }

    #[test]
    fn content_tells() {
        for (text, format) in [
            ("{\"tasks\": []}", Format::Json),
            ("\u{feff}  \n{}", Format::Json),
            ("[{}]", Format::Json),
            ("# note\n[dag]\n", Format::Toml),
            ("[[tasks]]\nid = 'a'", Format::Toml),
            ("dag_id = \"a\"", Format::Toml),
            ("---\ntasks:\n", Format::Yaml),
            ("# note\ntasks:\n  - id: a\n    command: A=1 run\n", Format::Yaml),
            ("", Format::Yaml),
        ] {
            assert_eq!(Format::guess(text.as_bytes()), format, "{text}");
        }
    }
}
