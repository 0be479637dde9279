void main() {} // mul
