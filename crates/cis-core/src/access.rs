//! Who may do what: identities with roles and scopes. How a caller proves who it is stays at the edge.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ErrorCode, Refusal};
use crate::id::Scope;

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at everything in its scopes.
    Read,
    /// Publish definitions, and run again what was confirmed.
    Publish,
    /// Confirm, reject, and stop runs.
    Confirm,
    /// Claim tasks and report on them.
    Work,
    /// Hand out tokens, drain the node.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::Read, Self::Publish, Self::Confirm, Self::Work, Self::Admin];

    /// The word people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Publish => "publish",
            Self::Confirm => "confirm",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }
}

/// Roles that usually go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Publishes and works; somebody else confirms.
    Agent,
    Worker,
    Reader,
    /// Decides about what others publish.
    Approver,
    /// All of it, its own definitions included.
    Owner,
}

impl Preset {
    /// Every preset with its word.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("agent", Self::Agent),
        ("worker", Self::Worker),
        ("reader", Self::Reader),
        ("approver", Self::Approver),
        ("owner", Self::Owner),
    ];

    /// The preset with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(name, _)| *name == word).map(|(_, preset)| preset)
    }

    /// What it stands for.
    pub fn roles(self) -> Vec<Role> {
        match self {
            Self::Agent => vec![Role::Read, Role::Publish, Role::Work],
            Self::Worker => vec![Role::Read, Role::Work],
            Self::Reader => vec![Role::Read],
            Self::Approver => vec![Role::Read, Role::Confirm],
            Self::Owner => Role::ALL.to_vec(),
        }
    }
}

/// A caller, once it is known who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Caller {
    /// Its DID, or the name of a person on this machine.
    pub identity: String,
    pub roles: Vec<Role>,
    /// What it may see and touch; everything, if there is no list.
    pub scopes: Option<Vec<Scope>>,
    /// It may confirm what it published itself.
    pub self_confirm: bool,
}

impl Caller {
    /// A caller as a preset describes it.
    pub fn preset(identity: impl Into<String>, preset: Preset, scopes: Option<Vec<Scope>>) -> Self {
        let self_confirm = preset == Preset::Owner;
        Self { identity: identity.into(), roles: preset.roles(), scopes, self_confirm }
    }

    /// Refuses a caller that lacks `role`.
    pub fn needs(&self, role: Role) -> Result<(), Refusal> {
        if self.roles.contains(&role) {
            return Ok(());
        }
        Err(Refusal::new(ErrorCode::Forbidden, format!("this takes the role `{}`", role.word()))
            .hint("ask the owner of the node for a token that has it")
            .details(serde_json::json!({"role": role.word()})))
    }

    /// May it approve what `publisher` published, itself included?
    pub fn may_approve(&self, publisher: &Publisher) -> bool {
        self.roles.contains(&Role::Confirm)
            && publisher.check_decider(&self.identity, self.self_confirm).is_ok()
    }

    /// May it know that anything of `scope` exists?
    pub fn sees(&self, scope: &Scope) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(scope))
    }
}

/// The publisher of a revision, or the caller that started a run of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    pub identity: String,
    /// False: it only said that it is `identity`, and may be any other caller, an approver included.
    pub proven: bool,
}

impl Publisher {
    /// Refuses a caller that may neither confirm what this one published nor approve its tasks. Owners, whose tokens say
    /// `self_confirm`, may decide about everything.
    pub fn check_decider(&self, by: &str, self_confirm: bool) -> Result<(), Refusal> {
        let own = "the publisher of a DAG neither confirms it nor approves its tasks";
        self.check(by, self_confirm, "published it", own)
    }

    /// Refuses a caller that may not approve the tasks of a run that this one started: it chose the parameters.
    pub fn check_approver_of_run(&self, by: &str, self_confirm: bool) -> Result<(), Refusal> {
        let own = "the caller that started a run does not approve its tasks";
        self.check(by, self_confirm, "started the run", own)
    }

    fn check(&self, by: &str, self_confirm: bool, deed: &str, own: &str) -> Result<(), Refusal> {
        if self_confirm {
            return Ok(());
        }
        if !self.proven {
            let why = format!("`{}` {deed} without proving its identity: owners decide", self.identity);
            return Err(Refusal::new(ErrorCode::Forbidden, why)
                .hint("decide on the node's own machine, or with a token that says `self_confirm`"));
        }
        if self.identity == by {
            return Err(Refusal::new(ErrorCode::Forbidden, own)
                .hint("another identity decides, or a token that says `self_confirm`"));
        }
        Ok(())
    }
}

/// Longest identity that a token is made for, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 256;

/// Refuses what is no identity for a new token: two of them that differ must look different, since people and rules tell
/// callers apart by them. So it is ASCII: other scripts have letters that look like these.
pub fn check_identity(text: &str) -> Result<(), Refusal> {
    let fits = (1..=IDENTITY_BYTES_MAX).contains(&text.len());
    let spaced = text.starts_with(' ') || text.ends_with(' ') || text.contains("  ");
    if fits && !spaced && text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
        return Ok(());
    }
    let why = format!(
        "an identity is 1 to {IDENTITY_BYTES_MAX} ASCII letters, digits and punctuation, with single spaces between them"
    );
    Err(Refusal::new(ErrorCode::ValidationFailed, why).hint("use a name such as `ann`, or `did:cis:NAME:ID`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_what_they_say() {
        let agent = Caller::preset("a", Preset::Agent, None);
        assert!(agent.needs(Role::Publish).is_ok());
        assert_eq!(agent.needs(Role::Confirm).unwrap_err().code, ErrorCode::Forbidden);
        assert!(!agent.self_confirm);
        assert!(Caller::preset("o", Preset::Owner, None).self_confirm);
        let approver = Caller::preset("p", Preset::Approver, None);
        assert!(approver.needs(Role::Confirm).is_ok() && !approver.self_confirm);
        assert!(approver.needs(Role::Publish).is_err() && approver.needs(Role::Admin).is_err());
        for (word, preset) in Preset::WORDS {
            assert_eq!(Preset::from_word(word), Some(preset));
        }
    }

    #[test]
    fn publishers_do_not_approve_their_own_unless_they_are_owners() {
        let by = |preset| Caller::preset("ann", preset, None);
        let publisher = |identity: &str, proven| Publisher { identity: identity.to_owned(), proven };
        let (ann, bob, said) = (publisher("ann", true), publisher("bob", true), publisher("bob", false));
        assert!(!by(Preset::Agent).may_approve(&bob));
        assert!(by(Preset::Approver).may_approve(&bob) && !by(Preset::Approver).may_approve(&ann));
        assert!(!by(Preset::Approver).may_approve(&said) && by(Preset::Owner).may_approve(&said));
        assert!(by(Preset::Owner).may_approve(&ann));
    }

    #[test]
    fn identities_that_look_alike_are_refused() {
        for good in ["ann", "did:cis:agent:a", "ann@example.org", "Ann Lee", "a_b-c (d)"] {
            assert!(check_identity(good).is_ok(), "{good}");
        }
        let long = "x".repeat(257);
        let bad = ["", " ", "u ", " u", "a  b", "u\t", "u\n", "u\0", "u\u{7f}", "u\u{a0}", "u\u{200b}"];
        let more =
            ["u\u{202e}", "u\u{feff}", "u\u{ad}", "u\u{3164}", "u\u{2800}", "u\u{301}", "u\u{e0041}", &long];
        let scripts = ["\u{430}nn", "a\u{578}n", "J\u{fc}rgen", "Ju\u{308}rgen", "\u{ff41}nn", "日本"];
        for bad in bad.into_iter().chain(more).chain(scripts) {
            assert_eq!(check_identity(bad).unwrap_err().code, ErrorCode::ValidationFailed, "{bad:?}");
        }
    }

    #[test]
    fn a_caller_sees_its_scopes_only() {
        let (own, other): (Scope, Scope) = ("project-a".parse().unwrap(), "project-b".parse().unwrap());
        let caller = Caller::preset("a", Preset::Agent, Some(vec![own.clone()]));
        assert!(caller.sees(&own) && !caller.sees(&other));
        assert!(Caller::preset("a", Preset::Agent, None).sees(&other));
    }
}
