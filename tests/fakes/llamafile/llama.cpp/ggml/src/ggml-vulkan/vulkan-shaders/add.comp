void main() {} // add
