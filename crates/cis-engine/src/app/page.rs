//! Where a list goes on: a word that says nothing to its holder, and fits only the list it was made for.

use std::fmt::Debug;

use cis_core::error::{ErrorCode, Refusal};

use crate::token::sha256_hex;

/// Lines of one page, unless asked for fewer or more.
const LIMIT: u32 = 100;
pub(super) const LIMIT_MAX: u32 = 1_000;

/// How much of a digest keeps a word from fitting elsewhere. It guards against mistakes, not against anybody: a key
/// alone lets nobody see what they may not.
const MARK_LEN: usize = 8;

/// One page of a list that is ordered by a key.
#[derive(Debug)]
pub(super) struct Page {
    /// What is listed, and by which filters.
    list: String,
    /// The key of the last line of the page before.
    pub(super) last: Option<i64>,
    /// At most so many lines.
    pub(super) limit: u32,
}

impl Page {
    /// The page that `cursor` asks for, of the list called `name` with `filters`; of `limit` lines, but at most `max`.
    pub(super) fn new(
        name: &str,
        filters: &impl Debug,
        cursor: Option<&str>,
        limit: Option<u32>,
        max: u32,
    ) -> Result<Self, Refusal> {
        let limit = limit.unwrap_or(LIMIT).clamp(1, max);
        let page = Self { list: format!("{name} {filters:?}"), last: None, limit };
        let Some(cursor) = cursor else { return Ok(page) };
        let key = cursor.split_once('-').and_then(|(key, _)| i64::from_str_radix(key, 16).ok());
        match key.filter(|key| page.word(*key) == cursor) {
            Some(key) => Ok(Self { last: Some(key), ..page }),
            None => {
                Err(Refusal::new(ErrorCode::ValidationFailed, "this `cursor` does not belong to this list")
                    .hint("send `next_cursor` of an earlier answer as it is, with the same filters"))
            }
        }
    }

    /// The lines of this page, and where the list goes on if there are `more`.
    pub(super) fn cut<T>(
        &self,
        (lines, more): (Vec<T>, bool),
        key: impl Fn(&T) -> i64,
    ) -> (Vec<T>, Option<String>) {
        let next = lines.last().filter(|_| more).map(|last| self.word(key(last)));
        (lines, next)
    }

    fn word(&self, key: i64) -> String {
        let digest = sha256_hex(format!("{} {key}", self.list).as_bytes());
        format!("{key:x}-{}", &digest[..MARK_LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_fits_its_own_list_only() {
        let (lines, next) =
            Page::new("a", &"x", None, Some(2), LIMIT_MAX).unwrap().cut((vec![7, 8], true), |n| *n);
        assert_eq!(lines, [7, 8]);
        let word = next.as_deref().unwrap();
        assert_eq!(Page::new("a", &"x", Some(word), None, LIMIT_MAX).unwrap().last, Some(8));
        for (name, filter, word) in
            [("b", "x", word), ("a", "y", word), ("a", "x", ""), ("a", "x", "-"), ("a", "x", "9-00000000")]
        {
            let refused = Page::new(name, &filter, Some(word), None, LIMIT_MAX).unwrap_err();
            assert_eq!(refused.code, ErrorCode::ValidationFailed);
        }
    }

    #[test]
    fn fuzz_cursors() {
        let list = Page::new("a", &"x", None, None, LIMIT_MAX).unwrap();
        let good = [0, 7, i64::MAX, i64::MIN].map(|key| list.word(key).into_bytes());
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("cursor").with(good), |text| {
            let Ok(text) = std::str::from_utf8(text) else { return false };
            match Page::new("a", &"x", Some(text), None, LIMIT_MAX) {
                Ok(page) => {
                    // Nobody gets further than by a word that was made for them.
                    assert_eq!(page.word(page.last.unwrap()), text);
                    true
                }
                Err(refusal) => {
                    assert_eq!(refusal.code, ErrorCode::ValidationFailed);
                    false
                }
            }
        });
    }

    #[test]
    fn the_last_page_goes_nowhere() {
        let cut = Page::new("a", &"x", None, Some(3), LIMIT_MAX).unwrap().cut((vec![7, 8, 9], false), |n| *n);
        assert_eq!(cut, (vec![7, 8, 9], None));
    }
}
