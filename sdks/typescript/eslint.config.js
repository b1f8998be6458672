import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/", "build/", "reference/", "node_modules/"] },
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ["eslint.config.js"] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: {
      "max-lines": ["error", { max: 600 }],
      "max-lines-per-function": ["error", { max: 70, skipComments: true }],
      "prefer-const": "error",
      eqeqeq: "error",
      // Numbers and tokens belong into messages.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true, allowBoolean: true }],
      "@typescript-eslint/consistent-type-imports": "error",
    },
  },
  {
    // A test file is one long list of cases, and `test()` returns a promise that its runner awaits.
    files: ["test/**"],
    rules: { "max-lines-per-function": "off", "@typescript-eslint/no-floating-promises": "off" },
  },
  { files: ["eslint.config.js"], ...tseslint.configs.disableTypeChecked },
);
