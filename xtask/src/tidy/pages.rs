//! The pages people read first: README in both languages says the same, CHANGELOG knows this version.

use std::fs;
use std::path::Path;

use anyhow::Result;

const README: &str = "README.md";
const README_ZH: &str = "README.zh-CN.md";
const CHANGELOG: &str = "CHANGELOG.md";

/// What can be compared across languages.
#[derive(Debug, PartialEq, Eq, Default)]
struct Outline {
    /// The level of each heading.
    headings: Vec<usize>,
    /// Code blocks, without remarks, which are translated.
    blocks: Vec<Vec<String>>,
}

/// Every way in which the pages are wrong.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut read = |name: &str| {
        let text = fs::read_to_string(root.join(name));
        text.unwrap_or_else(|problem| {
            broken.push(format!("{name}: {problem}"));
            String::new()
        })
    };
    let (english, chinese, changes) = (read(README), read(README_ZH), read(CHANGELOG));
    if !english.is_empty() && !chinese.is_empty() {
        broken.extend(differences(&Outline::of(&english), &Outline::of(&chinese)));
    }
    let version = env!("CARGO_PKG_VERSION");
    if !changes.is_empty() && !changes.contains(version) {
        broken.push(format!("{CHANGELOG}: does not mention {version}"));
    }
    Ok(broken)
}

fn differences(english: &Outline, chinese: &Outline) -> Vec<String> {
    let mut told = Vec::new();
    if english.headings != chinese.headings {
        let (ours, theirs) = (english.headings.len(), chinese.headings.len());
        told.push(format!(
            "{README_ZH}: its {theirs} headings are not those of {README} ({ours}), level by level"
        ));
    }
    let (ours, theirs) = (english.blocks.len(), chinese.blocks.len());
    if ours != theirs {
        told.push(format!("{README_ZH}: {theirs} code blocks, {README} has {ours}"));
    }
    for (index, (ours, theirs)) in english.blocks.iter().zip(&chinese.blocks).enumerate() {
        if ours != theirs {
            told.push(format!("{README_ZH}: code block {} is not the one of {README}", index + 1));
        }
    }
    told
}

impl Outline {
    fn of(text: &str) -> Self {
        let mut outline = Self::default();
        let mut inside = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
                if inside {
                    outline.blocks.push(Vec::new());
                }
            } else if inside {
                let code = line.split(" #").next().unwrap_or_default().trim_end();
                let block = outline.blocks.last_mut();
                block
                    .into_iter()
                    .filter(|_| !code.trim_start().starts_with('#'))
                    .for_each(|b| b.push(code.to_owned()));
            } else if line.starts_with('#') {
                outline.headings.push(line.chars().take_while(|c| *c == '#').count());
            }
        }
        outline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translations_may_differ_in_words_only() {
        let english = Outline::of("# CIS\ntext\n```sh\n# run it\ncargo run # now\n```\n## More\n");
        let chinese = Outline::of("# CIS 节点\n```sh\n# 运行\ncargo run # 现在\n```\n## 更多\n");
        assert_eq!(differences(&english, &chinese), Vec::<String>::new());
        assert_eq!(english.headings, [1, 2]);
    }

    #[test]
    fn other_code_or_headings_are_told() {
        let english = Outline::of("# CIS\n```sh\ncargo run\n```\n");
        assert_eq!(differences(&english, &Outline::of("# CIS\n## X\n```sh\ncargo run\n```\n")).len(), 1);
        assert_eq!(differences(&english, &Outline::of("# CIS\n```sh\ncargo test\n```\n")).len(), 1);
        assert_eq!(differences(&english, &Outline::of("# CIS\n")).len(), 1);
    }
}
