//! What a skill of a revision has in it, and what changed in it: the hash that is confirmed says neither.

use std::collections::BTreeSet;
use std::path::Path;

use cis_core::dag::Dag;
use cis_engine::skill::{KeptFile, KeptSkills, KeptTree, Shown, SkillPath};

use super::{Setup, diff};
use crate::source::Source;
use crate::term::Sheet;
use crate::term::text::{count, thousands};

/// Files of a skill that are listed, and that are compared, at most.
const FILES_SHOWN: usize = 200;

/// Content of more bytes is not shown.
const CONTENT_BYTES_MAX: u64 = 64 << 10;

/// Writes what is known of the files of a pinned skill.
pub(super) fn write(
    sheet: &mut Sheet,
    setup: &Setup,
    source: &Source,
    dag: &Dag,
    name: &str,
    tree_hash: &str,
) {
    let Some(tree) = find(sheet, setup, source, dag, name, tree_hash) else { return };
    sheet.field("kept in", &tree.place.to_string_lossy());
    sheet.verbatim("program", &tree.program.as_ref().map_or_else(Clone::clone, |argv| argv.join(" ")));
    sheet.name(&format!("files ({})", thousands(tree.files.len())));
    for (path, file) in tree.files.iter().take(FILES_SHOWN) {
        sheet.item(&format!("{}: {}", describe(file), path.display()));
    }
    if let Some(more) = tree.files.len().checked_sub(FILES_SHOWN).filter(|more| *more > 0) {
        sheet.remark(&format!("… and {}", count(more, "more file")));
    }
    write_source(sheet, setup, name, tree_hash);
}

/// Writes what changed in the skills that `before` and `after` pin differently.
pub(super) fn write_changes(sheet: &mut Sheet, setup: &Setup, source: &Source, before: &Dag, after: &Dag) {
    for (name, tree_hash) in &after.skills {
        let old = before.skills.get(name);
        if old == Some(tree_hash) || !tree_hash.starts_with("sha256:") {
            continue;
        }
        sheet.heading(&format!("skill {name}: {}", if old.is_some() { "changed" } else { "added" }));
        let Some(old) = old else {
            write(sheet, setup, source, after, name, tree_hash);
            continue;
        };
        let Some(new) = find(sheet, setup, source, after, name, tree_hash) else { continue };
        match KeptSkills::of(&setup.data_dir()).look(name, old) {
            Shown::Tree(old) => write_tree_changes(sheet, &old, &new),
            Shown::BuiltIn | Shown::Missing | Shown::Altered(_) => {
                sheet.remark("its files before are not kept: these are all it has now");
                write(sheet, setup, source, after, name, tree_hash);
                continue;
            }
        }
        write_source(sheet, setup, name, tree_hash);
    }
}

/// The kept tree of a skill, or else a remark that says why there is none to show.
fn find(
    sheet: &mut Sheet,
    setup: &Setup,
    source: &Source,
    dag: &Dag,
    name: &str,
    tree_hash: &str,
) -> Option<KeptTree> {
    if !source.is_here() {
        if tree_hash.starts_with("sha256:") {
            let id = &dag.dag_id;
            sheet
                .remark(&format!("its files are at the node: `cis dag show {id}` on its machine lists them"));
        }
        return None;
    }
    match KeptSkills::of(&setup.data_dir()).look(name, tree_hash) {
        Shown::Tree(tree) => return Some(tree),
        Shown::BuiltIn => {}
        Shown::Missing => sheet.remark("its files are not kept: it cannot be shown"),
        Shown::Altered(why) => {
            sheet.remark(&format!("its kept files no longer have this hash and will not run: {why}"));
        }
    }
    None
}

/// Says so where the directory that the skill is written in has other content by now.
fn write_source(sheet: &mut Sheet, setup: &Setup, name: &str, tree_hash: &str) {
    let path = SkillPath::new(setup.skill_dirs(&[], &std::env::current_dir().unwrap_or_default()));
    if let Some(now) = path.find(name).ok().filter(|skill| skill.tree_hash != tree_hash) {
        sheet.remark(&format!("the skill directory has other content now: {}", now.tree_hash));
        if let Some(dir) = now.dir {
            sheet.field("directory", &dir.to_string_lossy());
        }
    }
}

fn describe(file: &KeptFile) -> String {
    match &file.target {
        Some(target) => format!("link to {:?}", target.to_string_lossy()),
        None => {
            let size = count(usize::try_from(file.bytes).unwrap_or(usize::MAX), "byte");
            if file.executable { format!("{size}, executable") } else { size }
        }
    }
}

fn write_tree_changes(sheet: &mut Sheet, old: &KeptTree, new: &KeptTree) {
    if old.program != new.program {
        let text =
            |tree: &KeptTree| Some(tree.program.as_ref().map_or_else(Clone::clone, |argv| argv.join(" ")));
        diff::write_lines(sheet, "program", text(old), text(new));
    }
    let paths: BTreeSet<&Path> = old.files.keys().chain(new.files.keys()).map(AsRef::as_ref).collect();
    let changed: Vec<&Path> = paths.into_iter().filter(|path| differs(old, new, path)).collect();
    for path in changed.iter().take(FILES_SHOWN) {
        write_file_change(sheet, path, old, new);
    }
    if let Some(more) = changed.len().checked_sub(FILES_SHOWN).filter(|more| *more > 0) {
        sheet.remark(&format!("… and {} changed, not shown", count(more, "more file")));
    }
}

fn differs(old: &KeptTree, new: &KeptTree, path: &Path) -> bool {
    old.files.get(path) != new.files.get(path) || old.content(path) != new.content(path)
}

fn write_file_change(sheet: &mut Sheet, path: &Path, old: &KeptTree, new: &KeptTree) {
    let (before, after) = (old.files.get(path), new.files.get(path));
    let head = match (before, after) {
        (None, Some(file)) => format!("file added, {}", describe(file)),
        (Some(file), None) => format!("file removed, {}", describe(file)),
        (Some(before), Some(after)) => {
            format!("file changed, {} before, {} now", describe(before), describe(after))
        }
        (None, None) => return,
    };
    let head = format!("{head}: {}", path.display());
    let large = |file: Option<&KeptFile>| file.is_some_and(|file| file.bytes > CONTENT_BYTES_MAX);
    if large(before) || large(after) {
        sheet.name(&head);
        sheet.remark(&format!("content of more than {} KiB is not shown", CONTENT_BYTES_MAX >> 10));
        return;
    }
    let text = |tree: &KeptTree| tree.content(path).map(String::from_utf8).transpose();
    match (text(old), text(new)) {
        (Ok(before), Ok(after)) => diff::write_lines(sheet, &head, before, after),
        _ => {
            sheet.name(&head);
            sheet.remark("content that is not text is not shown");
        }
    }
}
