//! Components that are expensive to compile or to run.

use wasm_encoder::{
    BlockType, CodeSection, Component, ComponentBuilder, ComponentExportKind, ComponentExportSection,
    ComponentInstanceSection, ConstExpr, ElementSection, Elements, Function, FunctionSection, GlobalSection,
    GlobalType, Module, ModuleArg, ModuleSection, RefType, TableSection, TableType, TypeSection, ValType,
};

/// A component that is a handler by its names alone: the others are refused before they are compiled.
fn component(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    let mut instances = ComponentInstanceSection::new();
    let nothing: [(&str, ComponentExportKind, u32); 0] = [];
    instances.export_items(nothing);
    component.section(&instances);
    let mut exports = ComponentExportSection::new();
    exports.export("akri:discovery/handler@0.1.0", ComponentExportKind::Instance, 0, None);
    component.section(&exports);
    component.finish()
}

/// Returns a function of loops in one another: for today's compiler minutes, from a few hundred kilobytes.
pub fn nested_loops(depth: usize) -> Vec<u8> {
    let (mut module, mut types, mut functions, mut code) =
        (Module::new(), TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    let mut body = Function::new([]);
    for _ in 0..depth {
        body.instructions().loop_(BlockType::Empty).i32_const(0).br_if(0);
    }
    for _ in 0..=depth {
        body.instructions().end();
    }
    code.function(&body);
    module.section(&types).section(&functions).section(&code);
    component(&module)
}

/// Returns tables that are filled from element segments with a million entries: gigabytes, from a megabyte.
pub fn large_segments() -> Vec<u8> {
    let (mut module, mut types, mut functions, mut tables, mut elements, mut code) = (
        Module::new(),
        TypeSection::new(),
        FunctionSection::new(),
        TableSection::new(),
        ElementSection::new(),
        CodeSection::new(),
    );
    types.ty().function([], []);
    functions.function(0);
    let entries = vec![ConstExpr::ref_func(0); 200_000];
    for table in 0..5 {
        let element_type = RefType::FUNCREF;
        tables.table(TableType { element_type, table64: false, minimum: 200_000, maximum: None, shared: false });
        let all = Elements::Expressions(element_type, entries.as_slice().into());
        elements.active(Some(table), &ConstExpr::i32_const(0), all);
    }
    let mut body = Function::new([]);
    body.instructions().end();
    code.function(&body);
    module.section(&types).section(&functions).section(&tables).section(&elements).section(&code);
    component(&module)
}

/// Returns a million globals in each of 240 instances: gigabytes that no limit of a memory counts.
pub fn many_globals() -> Vec<u8> {
    let (mut module, mut globals) = (Module::new(), GlobalSection::new());
    let global = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
    for _ in 0..1_000_000 {
        globals.global(global, &ConstExpr::i64_const(0));
    }
    module.section(&globals);
    let mut component = ComponentBuilder::default();
    let module = component.core_module(None, &module);
    for _ in 0..240 {
        component.core_instantiate(None, module, Vec::<(&str, ModuleArg)>::new());
    }
    component.finish()
}
